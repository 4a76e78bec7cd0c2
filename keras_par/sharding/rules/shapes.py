"""Operations that only change shapes and order."""

import math

import keras
import tensorflow as tf

from keras_par.sharding.compute import compute
from keras_par.sharding.tensor import ShardedTensor, whole


def shape(original, x):
    """The whole tensor's shape; numbers where they are known, as Keras has it."""
    local = original(x.local)
    return tuple(local[dim] if x.axes[dim] is None else size for dim, size in enumerate(x.shape.as_list()))


def cast(original, x, dtype):
    """Each shard is cast; what has the dtype stays as it is, with all that Keras has noted on it."""
    return x if keras.backend.standardize_dtype(dtype) == x.dtype.name else x.with_local(original(x.local, dtype))


def convert_to_tensor(original, x, dtype=None, sparse=None, ragged=None):
    """A sharded tensor is one already."""
    return x if dtype is None else cast(original, x, dtype)


def transpose(original, x, axes=None):
    """The dims take their divisions along."""
    order = list(reversed(range(x.ndim))) if axes is None else [dim % x.ndim for dim in axes]
    return ShardedTensor(original(x.local, axes=order), tuple(x.axes[dim] for dim in order), x.mesh)


def swapaxes(original, x, axis1, axis2):
    """The dims take their divisions along."""
    order = list(range(x.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return ShardedTensor(original(x.local, axis1, axis2), tuple(x.axes[dim] for dim in order), x.mesh)


def moveaxis(original, x, source, destination):
    """The dims take their divisions along."""
    sources, destinations = ([v] if isinstance(v, int) else list(v) for v in (source, destination))
    moved = {to % x.ndim: dim % x.ndim for dim, to in zip(sources, destinations, strict=True)}
    rest = iter(dim for dim in range(x.ndim) if dim not in moved.values())
    order = [moved[dim] if dim in moved else next(rest) for dim in range(x.ndim)]
    return ShardedTensor(original(x.local, source, destination), tuple(x.axes[dim] for dim in order), x.mesh)


def expand_dims(original, x, axis):
    """New dims are not divided."""
    axes: list = list(x.axes)
    given = [axis] if isinstance(axis, int) else list(axis)
    for dim in sorted(dim % (x.ndim + len(given)) for dim in given):
        axes.insert(dim, None)
    return ShardedTensor(original(x.local, axis), tuple(axes), x.mesh)


def squeeze(original, x, axis=None):
    """Dims of one element cannot be divided."""
    sizes = x.shape.as_list()
    given = [dim for dim, size in enumerate(sizes) if size == 1] if axis is None else axis
    gone = {dim % x.ndim for dim in ([given] if isinstance(given, int) else given)}
    if any(sizes[dim] != 1 for dim in gone):
        return original(x.whole(), axis)
    kept = tuple(axis for dim, axis in enumerate(x.axes) if dim not in gone)
    return ShardedTensor(original(x.local, tuple(sorted(gone))) if gone else x.local, kept, x.mesh)


def reshape(original, x, newshape):
    """A divided dim may be the first of those that are joined or that it falls into; else the tensor is whole."""
    if isinstance(newshape, tf.Tensor):
        return original(x.whole(), newshape)
    new = [newshape] if isinstance(newshape, int) else list(newshape)
    found = reshaped(x, new)
    if found is None:
        return original(x.whole(), newshape)
    shape, axes = found
    return ShardedTensor(original(x.local, shape), axes, x.mesh)


def reshaped(x: ShardedTensor, new: list) -> tuple[list, tuple] | None:
    """The shape of a shard after reshaping to `new`, and its divisions; None if shards cannot be reshaped."""
    old = x.shape.as_list()
    sizes = resolved(old, [size if isinstance(size, int) and size >= 0 else None for size in new])
    if old.count(None) > 1:  # which unknown size is which, only running tells
        return None
    head, tail = 0, 0
    while head < min(len(old), len(sizes)) and old[head] == sizes[head]:
        head += 1
    while tail < min(len(old), len(sizes)) - head and old[-1 - tail] == sizes[-1 - tail]:
        tail += 1
    axes: list = [None] * len(sizes)
    axes[:head] = x.axes[:head]
    if tail:
        axes[-tail:] = x.axes[-tail:]
    middle = old[head : len(old) - tail], sizes[head : len(sizes) - tail]
    if None in middle[0] or None in middle[1]:
        if any(x.axes[head : len(old) - tail]):
            return None
    else:
        if math.prod(middle[0]) != math.prod(middle[1]):
            return None
        for olds, news in pieces(*middle):
            divided = [dim for dim in olds if x.axes[head + dim] is not None]
            if not divided:
                continue
            firsts = [dim for dim in olds if middle[0][dim] != 1][:1], [dim for dim in news if middle[1][dim] != 1][:1]
            axis = x.axes[head + divided[0]] or ""
            if divided != firsts[0] or not firsts[1] or middle[1][firsts[1][0]] % x.mesh.size(axis):
                return None
            axes[head + firsts[1][0]] = axis
    local = [size if axis is None else size // x.mesh.size(axis) for size, axis in zip(sizes, axes, strict=True)]
    return [given if size is None else size for size, given in zip(local, new, strict=True)], tuple(axes)


def resolved(old: list, new: list) -> list:
    """`new` with its one unknown size, if the old sizes tell."""
    if new.count(None) == 1 and None not in old:
        known = math.prod(size for size in new if size is not None)
        return [math.prod(old) // known if size is None else size for size in new]
    return new


def pieces(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of dims of `old` and `new` that hold the same number of elements, one after another."""
    found, i, k = [], 0, 0
    while i < len(old) or k < len(new):
        olds: list[int] = []
        news: list[int] = []
        ahead = behind = 1
        while True:
            if i < len(old) and (not olds or ahead <= behind):
                olds.append(i)
                ahead *= old[i]
                i += 1
            elif k < len(new):
                news.append(k)
                behind *= new[k]
                k += 1
            if ahead == behind and (news or k == len(new)):
                break
            if i == len(old) and k == len(new):
                break
        found.append((olds, news))
    return found


def concatenate(original, xs, axis=0):
    """Along a dim that is not divided; else the tensors are whole."""
    rank = len(xs[0].shape)
    dim = axis % rank
    names = [tuple("joined" if other == dim else other for other in range(rank))] * len(xs)
    return compute(lambda *local: original(list(local), axis=axis), xs, names, names[0], undivided=["joined"])


def stack(original, x, axis=0):
    """The new dim is not divided."""
    names = tuple(range(len(x[0].shape)))
    dim = axis % (len(names) + 1)
    result = (*names[:dim], "stacked", *names[dim:])
    return compute(lambda *local: original(list(local), axis=axis), x, [names] * len(x), result)


def split(original, x, indices_or_sections, axis=0):
    """Along a dim that is not divided; else the tensor is whole."""
    if x.axes[axis] is not None:
        return original(x.whole(), indices_or_sections, axis)
    return [x.with_local(part) for part in original(x.local, indices_or_sections, axis)]


def repeat(original, x, repeats, axis=None):
    """Neighbours are copies of each other, so that a shard's copies are a shard."""
    if axis is None or not isinstance(repeats, int):
        return original(whole(x), repeats, axis)
    return x.with_local(original(x.local, repeats, axis))


def pad(original, x, pad_width, mode="constant", constant_values=None):
    """Dims that are not divided may be padded."""
    widths = [tuple(pair) for pair in pad_width] if isinstance(pad_width, (list, tuple)) else None
    if widths is None or any(w != (0, 0) for w, axis in zip(widths, x.axes, strict=True) if axis is not None):
        return original(x.whole(), pad_width, mode, constant_values)
    return x.with_local(original(x.local, pad_width, mode, constant_values))
