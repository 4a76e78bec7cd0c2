"""Operations that reduce, order or normalize elements along dims."""

import math

import keras
import tensorflow as tf

from keras_par.sharding.compute import compute
from keras_par.sharding.names import unique
from keras_par.sharding.rules.dims import dim_of
from keras_par.sharding.tensor import ShardedTensor


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
    if num_parts(x, dims_of(x, axis)) == 1:
        return mean_over(original, x, axis, keepdims)  # local, as means are
    if x.dtype in (tf.float16, tf.bfloat16):  # in float32, as Keras does
        wide = variance_over(original, keras.ops.cast(x, "float32"), axis, keepdims)
        return keras.ops.cast(wide, x.dtype.name)
    mean = keras.ops.mean(x, axis=axis, keepdims=True)
    return keras.ops.mean(keras.ops.square(x - mean), axis=axis, keepdims=keepdims)


def deviation_over(original, x, axis=None, keepdims=False):
    """The root of the variance."""
    return keras.ops.sqrt(keras.ops.var(x, axis=axis, keepdims=keepdims))


def moments_over(original, x, axes, keepdims=False, synchronized=False):
    """Mean and variance. Costs two small all-reduces if a dim is divided."""
    if num_parts(x, dims_of(x, axes)) > 1:
        is_half = x.dtype in (tf.float16, tf.bfloat16)
        wide = keras.ops.cast(x, "float32") if is_half else x
        both = keras.ops.mean(wide, axes, keepdims), keras.ops.var(wide, axes, keepdims)
        if is_half:  # as Keras, for both kinds
            both = tuple(keras.ops.clip(each, tf.float16.min, tf.float16.max) for each in both)
        return tuple(keras.ops.cast(each, x.dtype.name) for each in both)
    mean, variance = original(x.local, axes, keepdims, synchronized)
    names = names_after(x, dims_of(x, axes), keepdims)
    kept = tuple(None if name is None else x.axes[name] for name in names)
    return ShardedTensor(mean, kept, x.mesh), ShardedTensor(variance, kept, x.mesh)


def reduced_whole(original, x, axis=None, keepdims=False, **options):
    """What cannot be put together from shards: `axis` is whole."""
    dims = dims_of(x, axis)
    return compute(
        lambda local: original(local, axis=axis, keepdims=keepdims, **options),
        [x],
        [range(x.ndim)],
        names_after(x, dims, keepdims),
        undivided=dims,
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


def along_whole(original, x, axis=-1, **options):
    """What keeps the shape and needs whole lines along `axis`."""
    if axis is None:
        return original(x.whole(), axis=axis, **options)
    dims = range(x.ndim)
    return compute(lambda local: original(local, axis=axis, **options), [x], [dims], dims, undivided=dims_of(x, axis))


def along_whole_or_all(original, x, axis=None, **options):
    """`along_whole` of functions that flatten or take all dims where they are given none."""
    return along_whole(original, x, axis, **options)


def softmax(original, x, axis=-1):
    """Costs two all-reduces of one number a line if the dim is divided. Losses find the logits on it, as Keras's do."""
    if num_parts(x, dims_of(x, axis)) == 1:
        found = x.with_local(original(x.local, axis=axis))
    else:
        powers = keras.ops.exp(x - largest(x, dims_of(x, axis)))
        found = powers / keras.ops.sum(powers, axis=axis, keepdims=True)
    found._keras_logits = x if isinstance(found, ShardedTensor) else x.whole()
    return found


def log_softmax(original, x, axis=-1):
    """Costs two all-reduces of one number a line if the dim is divided."""
    if num_parts(x, dims_of(x, axis)) == 1:
        return x.with_local(original(x.local, axis=axis))
    below = x - largest(x, dims_of(x, axis))
    return below - keras.ops.log(keras.ops.sum(keras.ops.exp(below), axis=axis, keepdims=True))


def largest(x: ShardedTensor, dims: list[int]) -> tf.Tensor:
    """The largest element along `dims`, which are kept, without a gradient. One all-reduce for each divided one."""
    value = tf.stop_gradient(tf.reduce_max(x.local, dims, keepdims=True))
    for axis in filter(None, (x.axes[dim] for dim in dims)):
        [value] = x.mesh.along(axis).all_reduce([value], unique("largest"), "max")
    kept = tuple(None if dim in dims else axis for dim, axis in enumerate(x.axes))
    return ShardedTensor(value, kept, x.mesh) if any(kept) else value
