"""How an operation on divided operands goes, as arithmetic: what each rank takes of them, and which sums follow.

Dims are named as in an einsum. A dim may be divided if all operands that have it are divided alike, or can be; one that
the result lacks is summed over, so that its shards add up. The running step and whoever plans one ask here, so that
what is planned is what runs.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from keras_par.plan.layout import Axes

# The name of a dim; None is one that all others may be broadcast to.
Label = Hashable
Labels = Sequence[Label | None]
# "gather" and "split" change the layout of a dim. "enter" lets a tensor that all ranks hold into a division: its
# gradient is summed over the axis. "gather_and_enter" is both. "total" and "scatter" add up shards of a sum.
Kind = Literal["gather", "gather_and_enter", "enter", "split", "total", "scatter"]


@dataclass(frozen=True)
class Move:
    """One step with a tensor along an axis of the mesh; `dim` is None where it is about no dim."""

    kind: Kind
    axis: str
    dim: int | None = None


@dataclass(frozen=True)
class Division:
    """How an operation goes.

    Args:
        axis_of: which axis divides which dim.
        operands: for each operand what is done to it first, in this order.
        result: the layout that shards give the result.
    """

    axis_of: dict[Label, str]
    operands: tuple[tuple[Move, ...], ...]
    result: Axes

    def is_cut(self, names: Labels) -> bool:
        """True if of an operand with these dims, whole on all ranks, each takes a part."""
        return any(name in self.axis_of for name in names)

    def cut(self, names: Labels) -> Axes:
        """The layout that an operand with these dims has within the operation."""
        return tuple(self.axis_of.get(name) for name in names)


def divide(
    layouts: Sequence[Axes | None], labels: Sequence[Labels], result: Labels, undivided: Sequence[Label] = ()
) -> Division:
    """How an operation goes whose operands are divided so.

    Args:
        layouts: for each operand its layout; None for one that is alike on all ranks.
        labels: for each operand the names of its dims.
        result: the names of the result's dims.
        undivided: names of dims that must be whole.
    """
    axis_of = agree(layouts, labels, undivided)
    moves = tuple(fit(layout, names, axis_of) for layout, names in zip(layouts, labels, strict=True))
    return Division(axis_of, moves, tuple(None if name is None else axis_of.get(name) for name in result))


def sums(division: Division, result: Labels, keeps_divided: Callable[[Axes, str], bool]) -> tuple[list[Move], Axes]:
    """The sums that make a result of shards, and its layout then.

    Args:
        division: of the operation.
        result: the names of the result's dims.
        keeps_divided: of a layout and an axis, if the sum over that axis stays divided along the last dim.
    """
    axes, moves = list(division.result), []
    for name, axis in division.axis_of.items():
        if name in result:
            continue
        if keeps_divided(tuple(axes), axis):
            moves.append(Move("scatter", axis, len(axes) - 1))
            axes[-1] = axis
        else:
            moves.append(Move("total", axis))
    return moves, tuple(axes)


def agree(layouts: Sequence[Axes | None], labels: Sequence[Labels], undivided: Sequence[Label]) -> dict[Label, str]:
    """Which axis divides which dim: each divides one at most, preferably where most operands are divided so.

    Among equals the last operand, which has the weights as a rule, stays as it is.
    """
    votes: dict[tuple[Label, str], tuple[int, int]] = {}
    for place, (layout, names) in enumerate(zip(layouts, labels, strict=True)):
        for name, axis in zip(names, layout, strict=True) if layout is not None else ():
            if axis is not None and name is not None and name not in undivided:
                votes[name, axis] = (votes.get((name, axis), (0, 0))[0] + 1, place)
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
