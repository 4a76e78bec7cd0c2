"""Data sets cut into one share a rank."""

from keras_par.data.distributed_sampler import DistributedSampler as DistributedSampler
from keras_par.data.load_tfds import load_tfds as load_tfds
from keras_par.data.shard import shard as shard
