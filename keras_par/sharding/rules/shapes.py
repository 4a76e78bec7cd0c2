"""Operations that only change shapes and order, or take rows of a tensor."""

import math

import keras
import tensorflow as tf

from keras_par.plan.reshaping import reshaped
from keras_par.sharding.compute import compute, dim_of
from keras_par.sharding.tensor import ShardedTensor, whole


def shape(original, x):
    """The whole tensor's shape; numbers where they are known, as Keras has it."""
    local = original(x.local)
    return tuple(local[dim] if x.axes[dim] is None else size for dim, size in enumerate(x.shape.as_list()))


def cast(original, x, dtype):
    """Each shard is cast; what has the dtype stays as it is, with all that Keras has noted on it."""
    if keras.backend.standardize_dtype(dtype) == x.dtype.name:
        return x
    return compute(lambda local: original(local, dtype), [x], [range(x.ndim)], range(x.ndim))


def convert_to_tensor(original, x, dtype=None, sparse=None, ragged=None):
    """A sharded tensor is one already."""
    return x if dtype is None else cast(original, x, dtype)


def transpose(original, x, axes=None):
    """The dims take their divisions along."""
    order = list(reversed(range(x.ndim))) if axes is None else [dim_of(dim, x.ndim) for dim in axes]
    return compute(lambda local: original(local, axes=order), [x], [range(x.ndim)], order)


def swapaxes(original, x, axis1, axis2):
    """The dims take their divisions along."""
    order = list(range(x.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return compute(lambda local: original(local, axis1, axis2), [x], [range(x.ndim)], order)


def moveaxis(original, x, source, destination):
    """The dims take their divisions along."""
    sources, destinations = ([v] if isinstance(v, int) else list(v) for v in (source, destination))
    moved = {dim_of(to, x.ndim): dim_of(dim, x.ndim) for dim, to in zip(sources, destinations, strict=True)}
    rest = iter(dim for dim in range(x.ndim) if dim not in moved.values())
    order = [moved[dim] if dim in moved else next(rest) for dim in range(x.ndim)]
    return compute(lambda local: original(local, source, destination), [x], [range(x.ndim)], order)


def expand_dims(original, x, axis):
    """New dims are not divided."""
    names: list = list(range(x.ndim))
    given = [axis] if isinstance(axis, int) else list(axis)
    for dim in sorted(dim_of(dim, x.ndim + len(given)) for dim in given):
        names.insert(dim, None)
    return compute(lambda local: original(local, axis), [x], [range(x.ndim)], names)


def squeeze(original, x, axis=None):
    """Dims of one element cannot be divided."""
    sizes = x.shape.as_list()
    given = [dim for dim, size in enumerate(sizes) if size == 1] if axis is None else axis
    gone = {dim_of(dim, x.ndim) for dim in ([given] if isinstance(given, int) else given)}
    if any(sizes[dim] != 1 for dim in gone):
        return original(x.whole(), axis)
    kept = [dim for dim in range(x.ndim) if dim not in gone]
    return compute(
        lambda local: original(local, tuple(sorted(gone))) if gone else tf.identity(local), [x], [range(x.ndim)], kept
    )


def reshape(original, x, newshape):
    """A divided dim may be the first of those that are joined or that it falls into; else the tensor is whole."""
    if isinstance(newshape, tf.Tensor):
        return original(x.whole(), newshape)
    new = [newshape] if isinstance(newshape, int) else list(newshape)
    old = x.shape.as_list()
    named, sizes = reshaped(old, new)

    def local(shard):
        own = [
            size if name is None or old[name] is None else size * shard.shape[name] // old[name]
            for size, name in zip(sizes, named.result, strict=True)
        ]
        return original(shard, own)

    return compute(local, [x], named.operands, named.result, undivided=named.undivided, lengths=named.lengths)


def concatenate(original, xs, axis=0):
    """Along a dim that is not divided; else the tensors are whole."""
    if isinstance(xs, ShardedTensor):
        return original(xs.whole(), axis)
    rank = len(xs[0].shape)
    dim = dim_of(axis, rank)
    names = [tuple("joined" if other == dim else other for other in range(rank))] * len(xs)
    return compute(lambda *local: original(list(local), axis=axis), xs, names, names[0], undivided=("joined",))


def stack(original, x, axis=0):
    """The new dim is not divided."""
    if isinstance(x, ShardedTensor):
        return original(x.whole(), axis)
    names = tuple(range(len(x[0].shape)))
    dim = dim_of(axis, len(names) + 1)
    result = (*names[:dim], "stacked", *names[dim:])
    return compute(lambda *local: original(list(local), axis=axis), x, [names] * len(x), result)


def split(original, x, indices_or_sections, axis=0):
    """Along a dim that is not divided."""
    dims, undivided = range(x.ndim), (dim_of(axis, x.ndim),)
    return compute(lambda local: original(local, indices_or_sections, axis), [x], [dims], dims, undivided=undivided)


def repeat(original, x, repeats, axis=None):
    """Neighbours are copies of each other, so that a shard's copies are a shard."""
    if axis is None or not isinstance(repeats, int):
        return original(whole(x), repeats, axis)
    return compute(lambda local: original(local, repeats, axis), [x], [range(x.ndim)], range(x.ndim))


def pad(original, x, pad_width, mode="constant", constant_values=None):
    """Dims that are padded are whole."""
    if not isinstance(pad_width, (list, tuple)) or not all(isinstance(pair, (list, tuple)) for pair in pad_width):
        return original(x.whole(), pad_width, mode, constant_values)
    dims = range(x.ndim)
    padded = tuple(dim for dim in dims if tuple(pad_width[dim]) != (0, 0))
    return compute(lambda local: original(local, pad_width, mode, constant_values), [x], [dims], dims, undivided=padded)


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


def take_along_axis(original, x, indices, axis=None):
    """Lines are whole; where one index holds for all of a dim, that may be divided."""
    indices = tf.convert_to_tensor(whole(indices))
    if not isinstance(x, ShardedTensor) or axis is None or indices.shape.rank != x.ndim:
        return original(whole(x), indices, axis)
    dim = dim_of(axis, x.ndim)
    names, of_indices, undivided = list(range(x.ndim)), list(range(x.ndim)), ["line", "chosen"]
    for other, (size, number) in enumerate(zip(x.shape, indices.shape, strict=True)):
        if other != dim and size != number:
            if number != 1:
                return original(x.whole(), indices, axis)
            undivided.append(one := f"one index for {other}")
            of_indices[other] = one
    result = [*names[:dim], "chosen", *names[dim + 1 :]]
    names[dim], of_indices[dim] = "line", "chosen"
    return compute(
        lambda *local: original(*local, axis), [x, indices], [names, of_indices], result, undivided=tuple(undivided)
    )


def slice_update(original, inputs, start_indices, updates):
    """Dims that are written from begin to end may be divided; the others are whole."""
    is_known = isinstance(start_indices, (list, tuple))
    names, of_updates, undivided = list(range(len(inputs.shape))), list(range(len(inputs.shape))), []
    for dim, (size, length) in enumerate(zip(inputs.shape, updates.shape, strict=True)):
        start = start_indices[dim] if is_known else None
        if size is None or size != length or not isinstance(start, int) or start:
            of_updates[dim] = f"written of {dim}"
            undivided += [dim, of_updates[dim]]
    return compute(
        lambda target, update: original(target, start_indices, update),
        [inputs, updates],
        [names, of_updates],
        names,
        undivided=tuple(undivided),
    )
