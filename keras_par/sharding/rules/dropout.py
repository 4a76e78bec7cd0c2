"""Dropout of shards by the mask that one process would draw for the whole tensor."""

import tensorflow as tf

from keras_par.sharding.compute import compute
from keras_par.sharding.tensor import ShardedTensor


def dropout(original, inputs, rate, noise_shape=None, seed=None):
    """The mask of this rank's rows is drawn from a seed that all share, and cut; nothing is sent."""
    dynamic = tf.shape(inputs.local)
    sizes = [dynamic[dim] if size is None else size for dim, size in enumerate(inputs.shape.as_list())]
    mask = tf.ensure_shape(original(ones_like(inputs, sizes), rate, noise_shape, seed), inputs.shape)
    dims = range(inputs.ndim)
    return compute(lambda local: local * cut(mask, inputs), [inputs], [dims], dims)


def ones_like(inputs: ShardedTensor, sizes: list) -> tf.Tensor:
    """Ones of the whole's shape, made of the shard, so that its dim 0 is known to be the batch's rows if it is that."""
    if inputs.ndim == 0 or inputs.axes[0] is not None:
        return tf.ones(sizes, inputs.dtype)
    corner = inputs.local[(slice(None), *[slice(0, 1)] * (inputs.ndim - 1))]
    return tf.broadcast_to(tf.ones_like(corner), sizes)


def cut(tensor: tf.Tensor, like: ShardedTensor) -> tf.Tensor:
    """This rank's shard of a tensor that has no gradient."""
    divided = [dim for dim, axis in enumerate(like.axes) if axis is not None]
    begin = [like.begin(dim) if dim in divided else 0 for dim in range(like.ndim)]
    return tf.slice(tensor, begin, [like.local.shape[dim] if dim in divided else -1 for dim in range(like.ndim)])
