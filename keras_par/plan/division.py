"""How an operation on divided operands goes, as arithmetic: what each rank takes of them, and which sums follow.

Dims are named as in an einsum. A dim may be divided if all operands that have it are divided alike, or can be; one that
the result lacks is summed over, so that its shards add up. The running step and whoever plans one ask here, so that
what is planned is what runs.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from keras_par.plan.layout import Axes

# The name of a dim; None is one that all others may be broadcast to.
Label = Hashable
Labels = Sequence[Label | None]
# "gather" and "split" change the layout of a dim. "enter" lets a tensor that all ranks hold into a division: its
# gradient is summed over the axis. "gather_and_enter" is both. "total" and "scatter" add up shards of a sum; "largest"
# finds the largest elements, and has no gradient.
Kind = Literal["gather", "gather_and_enter", "enter", "split", "total", "scatter", "largest"]


@dataclass(frozen=True)
class Move:
    """One step with a tensor along an axis of the mesh; `dim` is None where it is about no dim."""

    kind: Kind
    axis: str
    dim: int | None = None


@dataclass(frozen=True)
class Named:
    """An operation by the names of its dims: all that its division depends on.

    Args:
        operands: for each operand the names of its dims.
        result: the names of the result's dims, or of each result's.
        undivided: names of dims that must be whole.
        lengths: of some names a length that the axis which divides them must divide, too.
        combine: what becomes of parts of a result along a divided dim that it lacks: a sum, which may stay divided, a
            "total" on all ranks, or the "largest".
    """

    operands: tuple[tuple[Label | None, ...], ...]
    result: tuple[Label | None, ...]
    undivided: tuple[Label, ...] = ()
    lengths: tuple[tuple[Label, int], ...] = ()
    combine: Literal["sum", "total", "largest"] = "sum"


@dataclass(frozen=True)
class Division:
    """How an operation goes.

    Args:
        axis_of: which axis divides which dim.
        operands: for each operand what is done to it first, in this order.
        result: the layout that shards give the result.
        is_as_named: False if a dim was divided that must be whole.
    """

    axis_of: dict[Label, str]
    operands: tuple[tuple[Move, ...], ...]
    result: Axes
    is_as_named: bool

    def is_cut(self, names: Labels) -> bool:
        """True if of an operand with these dims, whole on all ranks, each takes a part."""
        return any(name in self.axis_of for name in names)

    def cut(self, names: Labels) -> Axes:
        """The layout that an operand with these dims has within the operation."""
        return tuple(self.axis_of.get(name) for name in names)


def divide(named: Named, layouts: Sequence[Axes | None], size_of: Callable[[str], int]) -> Division:
    """How an operation goes whose operands are divided so.

    Args:
        named: the operation.
        layouts: for each operand its layout; None for one that is alike on all ranks.
        size_of: of an axis the number of its ranks.
    """
    lengths = dict(named.lengths)
    votes: dict[tuple[Label, str], tuple[int, int]] = {}
    is_as_named = True
    for place, (layout, names) in enumerate(zip(layouts, named.operands, strict=True)):
        for name, axis in zip(names, layout, strict=True) if layout is not None else ():
            if axis is None or name is None:
                continue
            if name in named.undivided or lengths.get(name, 0) % size_of(axis):
                is_as_named = False
            else:
                votes[name, axis] = (votes.get((name, axis), (0, 0))[0] + 1, place)
    axis_of = elected(votes)
    moves = tuple(fit(layout, names, axis_of) for layout, names in zip(layouts, named.operands, strict=True))
    result = tuple(None if name is None else axis_of.get(name) for name in named.result)
    return Division(axis_of, moves, result, is_as_named)


def sums(
    named: Named, division: Division, keeps_divided: Callable[[Axes, str], bool] = lambda axes, axis: False
) -> tuple[list[Move], Axes]:
    """What makes a result of shards, and its layout then.

    Args:
        named: the operation.
        division: of it.
        keeps_divided: of a layout and an axis, if a sum over that axis stays divided along the last dim.
    """
    axes, moves = list(division.result), []
    for name, axis in division.axis_of.items():
        if name in named.result:
            continue
        if named.combine == "sum" and keeps_divided(tuple(axes), axis):
            moves.append(Move("scatter", axis, len(axes) - 1))
            axes[-1] = axis
        else:
            moves.append(Move("total" if named.combine == "sum" else named.combine, axis))
    return moves, tuple(axes)


def elected(votes: Mapping[tuple[Label, str], tuple[int, int]]) -> dict[Label, str]:
    """Which axis divides which dim: each divides one at most, preferably where most operands are divided so.

    Among equals the last operand, which has the weights as a rule, stays as it is.

    Args:
        votes: for dims and axes how many operands are divided so, and the place of the last.
    """
    chosen: dict[Label, str] = {}
    for (name, axis), _ in sorted(votes.items(), key=lambda item: item[1], reverse=True):
        if name not in chosen and axis not in chosen.values():
            chosen[name] = axis
    return chosen


def fit(layout: Axes | None, names: Labels, axis_of: dict[Label, str]) -> tuple[Move, ...]:
    """What makes of an operand the part that the chosen division needs of it."""
    axes = [None] * len(names) if layout is None else list(layout)
    lacking = [axis for name, axis in axis_of.items() if name not in names]
    moves = []
    for dim, (name, axis) in enumerate(zip(names, axes, strict=True)):
        if axis is not None and axis_of.get(name) != axis:
            moves.append(Move("gather_and_enter" if axis in lacking else "gather", axis, dim))
            lacking = [other for other in lacking if other != axis]
            axes[dim] = None
    moves += [Move("enter", axis) for axis in lacking]
    moves += [
        Move("split", axis_of[name], dim) for dim, name in enumerate(names) if name in axis_of and axes[dim] is None
    ]
    return tuple(moves)


def indexed(index: Any, ndim: int) -> Named | None:
    """`tensor[index]` of so many dims, which takes all of a divided dim; None if an index is a tensor or an array."""
    entries = index if isinstance(index, tuple) else (index,)
    if not all(entry is None or entry is Ellipsis or isinstance(entry, (int, slice)) for entry in entries):
        return None
    if Ellipsis not in entries:
        entries = (*entries, Ellipsis)
    place, given = entries.index(Ellipsis), sum(entry is not None and entry is not Ellipsis for entry in entries)
    entries = (*entries[:place], *[slice(None)] * (ndim - given), *entries[place + 1 :])
    dims = iter(range(len(entries)))
    named = [(None if entry is None else next(dims), entry) for entry in entries]
    result = tuple(dim for dim, entry in named if not isinstance(entry, int))
    partly = tuple(dim for dim, entry in named if entry is not None and entry != slice(None))
    return Named((tuple(range(ndim)),), result, partly)
