"""Dropout of shards by the mask that one process would draw for the whole tensor."""

import tensorflow as tf

from keras_par.plan.layout import Axes
from keras_par.sharding.tensor import ShardedTensor


def dropout(original, inputs, rate, noise_shape=None, seed=None):
    """The mask of this rank's rows is drawn from a seed that all share, and cut; nothing is sent."""
    dynamic = tf.shape(inputs.local)
    sizes = [dynamic[dim] if size is None else size for dim, size in enumerate(inputs.shape.as_list())]
    mask = original(ones_like(inputs, sizes), rate, noise_shape, seed)
    return inputs.with_local(inputs.local * cut(tf.ensure_shape(mask, inputs.shape), inputs.axes, inputs))


def ones_like(inputs: ShardedTensor, sizes: list) -> tf.Tensor:
    """Ones of the whole's shape, made of the shard, so that its dim 0 is known to be the batch's rows if it is that."""
    if inputs.ndim == 0 or inputs.axes[0] is not None:
        return tf.ones(sizes, inputs.dtype)
    corner = inputs.local[(slice(None), *[slice(0, 1)] * (inputs.ndim - 1))]
    return tf.broadcast_to(tf.ones_like(corner), sizes)


def cut(tensor: tf.Tensor, axes: Axes, like: ShardedTensor) -> tf.Tensor:
    """This rank's shard of a tensor that has no gradient."""
    for dim, axis in enumerate(axes):
        if axis is not None:
            group = like.mesh.along(axis)
            length = tensor.shape[dim] // group.size
            begin = [length * group.rank if d == dim else 0 for d in range(tensor.shape.rank)]
            tensor = tf.slice(tensor, begin, [length if d == dim else -1 for d in range(tensor.shape.rank)])
    return tensor
