"""Collectives for losses that look across the batch: differentiable, and exact whatever rows each rank has."""

from keras_par.ops.collectives import all_gather as all_gather
from keras_par.ops.collectives import all_reduce as all_reduce
from keras_par.ops.collectives import all_to_all as all_to_all
from keras_par.ops.collectives import broadcast as broadcast
from keras_par.ops.collectives import row_offset as row_offset

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "row_offset"]
