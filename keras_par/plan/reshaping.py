"""Names the dims of a tensor that is reshaped, so that its division goes on where it can."""

import math
from collections.abc import Sequence
from typing import Any

from keras_par.plan.division import Label, Named

Sizes = Sequence[Any]  # numbers, or None for what is not known


def reshaped(shape: Sizes, new: Sequence[Any]) -> tuple[Named, list[Any]]:
    """A reshape to `new`, whose dims have the names of the old ones that they begin with, and the sizes it gives.

    A divided dim may be the first of those that are joined, or that it falls into.

    Args:
        shape: of the whole tensor; None for what is not known.
        new: sizes, of which one may be -1, and any a tensor.
    """
    old = list(shape)
    sizes: list[Any] = resolved(old, [size if isinstance(size, int) and size >= 0 else None for size in new])
    head, tail = 0, 0
    while head < min(len(old), len(sizes)) and old[head] == sizes[head]:
        head += 1
    while tail < min(len(old), len(sizes)) - head and old[-1 - tail] == sizes[-1 - tail]:
        tail += 1
    middle = old[head : len(old) - tail], sizes[head : len(sizes) - tail]
    is_known = None not in middle[0] and None not in middle[1]
    names: list[Label | None] = [None] * len(sizes)
    lengths: list[tuple[Label, int]] = []
    # Which unknown size is which, only running tells.
    if old.count(None) < 2 and (not is_known or math.prod(middle[0]) == math.prod(middle[1])):
        names[:head] = range(head)
        names[len(sizes) - tail :] = range(len(old) - tail, len(old))
        for olds, news in pieces(*middle) if is_known else ():
            first = next((dim for dim in olds if middle[0][dim] != 1), None)
            into = next((dim for dim in news if middle[1][dim] != 1), None)
            if first is not None and into is not None:
                names[head + into] = head + first
                lengths.append((head + first, middle[1][into]))
    whole = tuple(dim for dim in range(len(old)) if dim not in names)
    named = Named((tuple(range(len(old))),), tuple(names), whole, tuple(lengths))
    return named, [given if size is None else size for size, given in zip(sizes, new, strict=True)]


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
