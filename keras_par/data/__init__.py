"""Data sets cut into one share a rank, and rows that are read where they are needed."""

from keras_par.data.load_tfds import load_tfds as load_tfds
from keras_par.data.shard import DistributedSampler as DistributedSampler
from keras_par.data.shard import shard as shard
from keras_par.keras_patches.inputs.arrays import RowReader as RowReader
