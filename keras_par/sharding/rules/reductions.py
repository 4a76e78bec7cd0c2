"""Operations that reduce, order or normalize elements along dims."""

import math
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from keras_par.sharding.collective_names import unique
from keras_par.sharding.compute import compute, dim_of
from keras_par.sharding.tensor import ShardedTensor

HALVES = (tf.float16, tf.bfloat16)


def dims_of(x, axis) -> list[int]:
    """The dims that an argument `axis` means."""
    given = range(x.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else [axis]
    return sorted(dim_of(dim, x.ndim) for dim in given)


def num_parts(x: ShardedTensor, dims: list[int]) -> int:
    """How many shards there are along `dims`."""
    return math.prod(x.mesh.size(axis) for dim, axis in enumerate(x.axes) if axis is not None and dim in dims)


def names_after(x, dims: list[int], keepdims: bool) -> list:
    names = [None if dim in dims else dim for dim in range(x.ndim)]
    return names if keepdims else [dim for dim in range(x.ndim) if dim not in dims]


def sum_over(original, x, axis=None, keepdims=False):
    """The shards' sums added up. Costs one all-reduce of the result if a dim of the sum is divided."""
    dims = dims_of(x, axis)
    return compute(
        lambda local: original(local, axis=tuple(dims), keepdims=keepdims),
        [x],
        [range(x.ndim)],
        names_after(x, dims, keepdims),
    )


def mean_over(original, x, axis=None, keepdims=False):
    """The mean of the shards' means. Costs as much as a sum."""
    dims = dims_of(x, axis)
    if not x.dtype.is_floating:
        return reduced_whole(original, x, axis, keepdims)
    parts = num_parts(x, dims)

    def local(shard):
        mean = original(shard, axis=tuple(dims), keepdims=keepdims)
        return mean / parts if parts > 1 else mean

    return compute(local, [x], [range(x.ndim)], names_after(x, dims, keepdims))


def variance_over(original, x, axis=None, keepdims=False):
    """The mean squared distance from the mean. Costs two small all-reduces if a dim is divided."""

    def divided(x):
        if x.dtype in HALVES:  # in float32, as Keras does
            return keras.ops.cast(divided(keras.ops.cast(x, "float32")), x.dtype.name)
        mean = keras.ops.mean(x, axis=axis, keepdims=True)
        return keras.ops.mean(keras.ops.square(x - mean), axis=axis, keepdims=keepdims)

    return reduced_whole(original, x, axis, keepdims, divided)


def deviation_over(original, x, axis=None, keepdims=False):
    """The root of the variance."""
    divided = partial(keras.ops.var, axis=axis, keepdims=keepdims)
    return reduced_whole(original, x, axis, keepdims, lambda x: keras.ops.sqrt(divided(x)))


def moments_over(original, x, axes, keepdims=False, synchronized=False):
    """Mean and variance. Costs two small all-reduces if a dim is divided, and one more for the mean within."""

    def divided(x):
        wide = keras.ops.cast(x, "float32") if x.dtype in HALVES else x
        both = keras.ops.mean(wide, axes, keepdims), keras.ops.var(wide, axes, keepdims)
        if x.dtype in HALVES:  # as Keras, for both kinds
            both = tuple(keras.ops.clip(each, tf.float16.min, tf.float16.max) for each in both)
        return tuple(keras.ops.cast(each, x.dtype.name) for each in both)

    return reduced_whole(
        lambda local, axis, keepdims: original(local, axis, keepdims, synchronized), x, axes, keepdims, divided
    )


def reduced_whole(original, x, axis=None, keepdims=False, otherwise=None, **options):
    """What cannot be put together from shards: `axis` is whole, or what is `otherwise` made of its shards."""
    dims = dims_of(x, axis)
    return compute(
        lambda local: original(local, axis=axis, keepdims=keepdims, **options),
        [x],
        [range(x.ndim)],
        names_after(x, dims, keepdims),
        otherwise,
        undivided=tuple(dims),
    )


def argmax(original, x, axis=None, keepdims=False):
    """The place of the first largest element. Costs two all-gathers of one number a line if the dim is divided."""
    dims = dims_of(x, axis)
    if axis is None or num_parts(x, dims) == 1 or x.dtype.is_bool:
        return reduced_whole(original, x, axis, keepdims)
    [dim], group = dims, x.group(dims[0])
    places = original(x.local, axis=dim, keepdims=True)
    values = keras.ops.take_along_axis(x.local, places, dim)
    places += tf.cast(x.local.shape[dim] * group.rank, places.dtype)
    own = [part if keepdims else tf.squeeze(part, dim) for part in (values, places)]
    values, places = (group.all_gather(part[None], unique("argmax")) for part in own)
    first = tf.one_hot(original(values, axis=0), group.size, axis=0, dtype=places.dtype)
    names = names_after(x, dims, keepdims)
    found = tf.ensure_shape(tf.reduce_sum(places * first, 0), [1 if n is None else x.local.shape[n] for n in names])
    kept = tuple(None if name is None else x.axes[name] for name in names)
    return ShardedTensor(found, kept, x.mesh) if any(kept) else found


def along_whole(original, x, axis=-1, otherwise=None, **options):
    """What keeps the shape and needs whole lines along `axis`, or what is `otherwise` made of their shards."""
    if axis is None:
        return original(x.whole(), axis=axis, **options)
    dims, undivided = range(x.ndim), tuple(dims_of(x, axis))
    return compute(
        lambda local: original(local, axis=axis, **options), [x], [dims], dims, otherwise, undivided=undivided
    )


def along_whole_or_all(original, x, axis=None, **options):
    """`along_whole` of functions that flatten or take all dims where they are given none."""
    return along_whole(original, x, axis, **options)


def softmax(original, x, axis=-1):
    """Costs two all-reduces of one number a line if the dim is divided. Losses find the logits on it, as Keras's do."""

    def divided(x):
        powers = keras.ops.exp(x - largest(x, axis))
        return powers / keras.ops.sum(powers, axis=axis, keepdims=True)

    found = along_whole(original, x, axis, divided)
    if axis is not None:
        found._keras_logits = x
    return found


def log_softmax(original, x, axis=-1):
    """Costs two all-reduces of one number a line if the dim is divided."""

    def divided(x):
        below = x - largest(x, axis)
        return below - keras.ops.log(keras.ops.sum(keras.ops.exp(below), axis=axis, keepdims=True))

    return along_whole(original, x, axis, divided)


def largest(x: ShardedTensor, axis) -> Any:
    """The largest element along dims, which are kept, without a gradient. One all-reduce for each divided one."""
    dims = dims_of(x, axis)
    labels = [None if dim in dims else dim for dim in range(x.ndim)]
    local = partial(tf.reduce_max, axis=dims, keepdims=True)
    return compute(lambda x: tf.stop_gradient(local(x)), [x], [range(x.ndim)], labels, combine="largest")
