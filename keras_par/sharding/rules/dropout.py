"""Dropout of shards by the mask that one process would draw for the whole tensor."""

import tensorflow as tf

from keras_par.plan.layout import Axes
from keras_par.sharding.tensor import ShardedTensor


def dropout(original, inputs, rate, noise_shape=None, seed=None):
    """The mask is drawn whole on every rank from the same seed, and cut; nothing is sent."""
    dynamic = tf.shape(inputs.local)
    sizes = [dynamic[dim] if size is None else size for dim, size in enumerate(inputs.shape.as_list())]
    ones = tf.ones(sizes, inputs.dtype)
    mask = tf.ensure_shape(original(ones, rate, noise_shape, seed), inputs.shape)
    return inputs.with_local(inputs.local * cut(mask, inputs.axes, inputs))


def cut(tensor: tf.Tensor, axes: Axes, like: ShardedTensor) -> tf.Tensor:
    """This rank's shard of a tensor that has no gradient."""
    for dim, axis in enumerate(axes):
        if axis is not None:
            group = like.mesh.along(axis)
            length = tensor.shape[dim] // group.size
            begin = [length * group.rank if d == dim else 0 for d in range(tensor.shape.rank)]
            tensor = tf.slice(tensor, begin, [length if d == dim else -1 for d in range(tensor.shape.rank)])
    return tensor
