"""How the division of a tensor goes on when it is reshaped, as arithmetic."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from keras_par.plan.layout import Axes

Sizes = Sequence[Any]  # numbers, or None for what is not known


def reshaped(
    shape: Sizes, axes_before: Axes, new: Sequence[Any], size_of: Callable[[str], int]
) -> tuple[list[Any], Axes] | None:
    """The shape of a shard after reshaping to `new`, and its layout; None if shards cannot be reshaped.

    A divided dim may be the first of those that are joined, or that it falls into.

    Args:
        shape: of the whole tensor; None for what is not known.
        axes_before: its layout.
        new: sizes, of which one may be -1, and any a tensor.
        size_of: of an axis the number of its ranks.
    """
    old = list(shape)
    sizes: list[Any] = resolved(old, [size if isinstance(size, int) and size >= 0 else None for size in new])
    if old.count(None) > 1:  # which unknown size is which, only running tells
        return None
    head, tail = 0, 0
    while head < min(len(old), len(sizes)) and old[head] == sizes[head]:
        head += 1
    while tail < min(len(old), len(sizes)) - head and old[-1 - tail] == sizes[-1 - tail]:
        tail += 1
    axes: list = [None] * len(sizes)
    axes[:head] = axes_before[:head]
    if tail:
        axes[-tail:] = axes_before[-tail:]
    middle = old[head : len(old) - tail], sizes[head : len(sizes) - tail]
    if None in middle[0] or None in middle[1]:
        if any(axes_before[head : len(old) - tail]):
            return None
    else:
        if math.prod(middle[0]) != math.prod(middle[1]):
            return None
        for olds, news in pieces(*middle):
            divided = [dim for dim in olds if axes_before[head + dim] is not None]
            if not divided:
                continue
            firsts = [dim for dim in olds if middle[0][dim] != 1][:1], [dim for dim in news if middle[1][dim] != 1][:1]
            axis = axes_before[head + divided[0]] or ""
            if divided != firsts[0] or not firsts[1] or middle[1][firsts[1][0]] % size_of(axis):
                return None
            axes[head + firsts[1][0]] = axis
    local = [size if axis is None else size // size_of(axis) for size, axis in zip(sizes, axes, strict=True)]
    return [given if size is None else size for size, given in zip(local, new, strict=True)], tuple(axes)


def resolved(old: Sizes, new: list) -> list:
    """`new` with its one unknown size, if the old sizes tell."""
    if new.count(None) == 1 and None not in old:
        known = math.prod(size for size in new if size is not None)
        return [math.prod(old) // known if size is None else size for size in new]
    return new


def pieces(old: Sizes, new: Sizes) -> list[tuple[list[int], list[int]]]:
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
