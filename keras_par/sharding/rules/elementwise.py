"""Operations that treat each element by itself, with NumPy's broadcasting, and dropout by one process's mask."""

from typing import Any

import tensorflow as tf

from keras_par.sharding.compute import Labels, compute
from keras_par.sharding.tensor import ShardedTensor


def elementwise(original, *args, **kwargs):
    """Shards stay shards; tensors that are alike on all ranks give the elements that belong to them."""
    names = list(kwargs)
    values = [*args, *kwargs.values()]
    values = [tf.convert_to_tensor(value) if isinstance(value, (list, tuple)) else value for value in values]
    places = [i for i, value in enumerate(values) if is_operand(value)]
    operands = [values[i] for i in places]

    def local(*shards):
        for i, shard in zip(places, shards, strict=True):
            values[i] = shard
        return original(*values[: len(args)], **dict(zip(names, values[len(args) :], strict=True)))

    labels, result = broadcast_labels([shape_of(operand) for operand in operands])
    return compute(local, operands, labels, result)


def where(original, condition, x1=None, x2=None):
    """As other operations; without values to choose from it tells places, for which the condition is whole."""
    if x1 is None or x2 is None:
        return original(*(value.whole() if hasattr(value, "whole") else value for value in (condition, x1, x2)))
    return elementwise(original, condition, x1, x2)


def is_operand(value: Any) -> bool:
    return tf.is_tensor(value) or (hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type))


def shape_of(value: Any) -> tuple[int | None, ...]:
    return tuple(value.shape)


def broadcast_labels(shapes: list[tuple[int | None, ...]], first: int = 0) -> tuple[list[Labels], Labels]:
    """Names for the dims of operands that are broadcast to each other, and for those of what they make.

    Args:
        shapes: of the operands.
        first: the dims are counted from the right beginning with -1 - first.
    """
    rank = max(map(len, shapes))
    wide = {dim for dim in range(-rank, 0) if any(len(shape) >= -dim and shape[dim] != 1 for shape in shapes)}

    def name(shape, dim):
        return None if dim in wide and shape[dim] == 1 else dim - first

    labels: list[Labels] = [tuple(name(shape, dim) for dim in range(-len(shape), 0)) for shape in shapes]
    return labels, tuple(dim - first for dim in range(-rank, 0))


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
