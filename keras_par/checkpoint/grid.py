"""Where the ranks of a job stand, which of them write what of a variable, and whose files have the part of another."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from keras_par.plan.layout import Axes, shard_of
from keras_par.plan.mesh import BATCH, Mesh

Part = tuple[slice, ...]
V = TypeVar("V", bound="Divided")


class Divided(Protocol):
    """What must be known of a variable: its whole shape, the axes that divide it, how the ranks' values differ."""

    @property
    def shape(self) -> list[int]: ...

    @property
    def axes(self) -> list[str | None]: ...

    @property
    def across_ranks(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class Grid(Mesh):
    """A mesh of the ranks that write a checkpoint, and the axes along which they have other rows.

    Ranks that differ in their place along other axes only are one place of the data: their values of a variable are
    equal, or parts of one.
    """

    batch_axis: str
    replica_axis: str | None = None

    @property
    def num_places(self) -> int:
        """How many places have other rows."""
        return math.prod(self.size(axis) for axis in self._row_axes)

    @property
    def _row_axes(self) -> tuple[str, ...]:
        return (self.batch_axis,) if self.replica_axis is None else (self.replica_axis, self.batch_axis)

    def place(self, rank: int) -> int:
        """A rank's place among the data."""
        place, coordinates = 0, self.coordinates(rank)
        for axis in self._row_axes:
            place = place * self.size(axis) + coordinates[axis]
        return place

    def writes(self, variable: Divided, rank: int) -> bool:
        """True for one of the ranks that hold the same part of a variable: the first along the other axes."""
        return bool(self.written_by(rank, [variable]))

    def written_by(self, rank: int, variables: Sequence[V]) -> list[V]:
        """Those of some variables that a rank writes."""
        moved = {axis for axis, number in self.coordinates(rank).items() if number}
        rows = set(self._row_axes)
        return [
            each
            for each in variables
            if moved <= set(each.axes) or (each.across_ranks != "same" and moved <= rows | set(each.axes))
        ]

    def part(self, variable: Divided, rank: int) -> Part:
        """The part of a variable that a rank holds."""
        axes: Axes = tuple(variable.axes) or (None,) * len(variable.shape)
        return shard_of(variable.shape, axes, self, rank)

    def parts(self, variable: Divided, place: int) -> Iterator[tuple[int, Part]]:
        """The ranks that write the value of one place of the data, with the part that each has."""
        for rank in self.ranks:
            if self.writes(variable, rank) and (variable.across_ranks == "same" or self.place(rank) == place):
                yield rank, self.part(variable, rank)


def in_a_row(num_ranks: int) -> Grid:
    """Ranks that all have other rows."""
    return Grid((num_ranks,), (BATCH,), tuple(range(num_ranks)), BATCH)


def overlap(one: Part, other: Part) -> Part | None:
    """What two parts of a variable have in common, None if that is nothing."""
    common = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return None if any(each.start >= each.stop for each in common) else common


def within(inner: Part, outer: Part) -> Part:
    """Where `inner` lies in `outer`, counted from its begin."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(inner, outer, strict=True))
