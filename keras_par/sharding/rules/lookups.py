"""Taking rows of a table that is divided by rows, by columns, or by both."""

import math

import tensorflow as tf

from keras_par.sharding.compute import compute
from keras_par.sharding.rules.dims import dim_of
from keras_par.sharding.tensor import ShardedTensor, whole


def take(original, x, indices, axis=None):
    """Each rank takes the rows it has and zeros for the others, which add up. Costs one all-reduce by rows."""
    indices = whole(indices)
    if not isinstance(x, ShardedTensor) or axis is None or not isinstance(indices, tf.Tensor):
        return original(whole(x), indices, axis)
    dim = dim_of(axis, x.ndim)
    rank = indices.shape.rank
    names = tuple(range(x.ndim))
    result = (*names[:dim], *[f"i{i}" for i in range(rank)], *names[dim + 1 :])
    begin, length = x.begin(dim), x.shape[dim]

    def local(shard):
        if x.axes[dim] is None:
            return original(shard, indices, axis)
        places = tf.where(indices < 0, indices + length, indices)
        own = places - begin
        is_own = (own >= 0) & (own < shard.shape[dim])
        is_none = (places < 0) | (places >= length)  # their rows are NaN, where one process would fail
        rows = original(shard, tf.where(is_own, own, 0), axis)
        around = [*[1] * dim, *tf.unstack(tf.shape(indices)), *[1] * (x.ndim - dim - 1)]
        others = tf.zeros([], rows.dtype)
        if x.dtype.is_floating:
            others = tf.where(tf.reshape(is_none, around), tf.constant(math.nan, rows.dtype), others)
        return tf.where(tf.reshape(is_own, around), rows, others)

    return compute(local, [x], [names], result)
