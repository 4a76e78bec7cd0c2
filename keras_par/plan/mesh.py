"""The device mesh as arithmetic: how many ranks stand along each axis and where each stands, and who shares an axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from keras_par.plan.toml import instead, shown

BATCH = "batch"  # the axis of ranks that all have other rows, as Keras calls it in data parallel
REPLICA = "replica"  # the axis of ranks that have other rows and store the same parts


@dataclass(frozen=True)
class Mesh:
    """Ranks laid out in a grid, row-major.

    Args:
        shape: number of ranks along each axis.
        axis_names: of the axes.
        ranks: the ranks in row-major order; each of 0 to size - 1 once.

    Raises:
        ValueError: the shape does not hold the ranks, a rank is missing, or ranks descend along an axis.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    ranks: tuple[int, ...]

    def __post_init__(self):
        if math.prod(self.shape) != len(self.ranks) or sorted(self.ranks) != list(range(len(self.ranks))):
            raise ValueError(
                f"keras-par: a mesh of shape {self.shape} must hold each rank of the job once, but holds "
                f"{list(self.ranks)}: leave out its devices, or list all of keras.distribution.list_devices()."
            )
        for axis in self.axis_names:
            for group in self.groups(axis):
                if list(group) != sorted(group):
                    raise ValueError(
                        f"keras-par: along its axis '{axis}' the mesh holds ranks {list(group)}, but ranks must "
                        "ascend: list the devices in the order of keras.distribution.list_devices()."
                    )

    def split(self, axis: str, size: int) -> "Mesh":
        """This mesh with an axis cut into groups of so many neighbours: they lie along `axis`, groups along REPLICA.

        Raises:
            ValueError: the axis cannot be cut so, or there is an axis of that name.
        """
        number = self.axis_names.index(axis)
        if self.shape[number] % size:
            raise ValueError(
                f"keras-par: zero_ranks={size} does not divide the {self.shape[number]} ranks with other rows, along "
                f"'{axis}': give a number that does."
            )
        if REPLICA in self.axis_names:
            raise ValueError(f"keras-par: the mesh has an axis '{REPLICA}', which zero_ranks makes: call it otherwise.")
        shape = (*self.shape[:number], self.shape[number] // size, size, *self.shape[number + 1 :])
        names = (*self.axis_names[:number], REPLICA, *self.axis_names[number:])
        return Mesh(shape, names, self.ranks)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis."""
        return self.shape[self.axis_names.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands along each axis."""
        place, found = self.ranks.index(rank), {}
        for axis, size in zip(reversed(self.axis_names), reversed(self.shape), strict=True):
            place, found[axis] = divmod(place, size)
        return found

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """The groups of ranks that differ in their place along `axis` only, each in the order of that place."""
        number = self.axis_names.index(axis)
        stride = math.prod(self.shape[number + 1 :])
        others = product(*(range(1 if i == number else size) for i, size in enumerate(self.shape)))
        strides = [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))]
        firsts = [sum(c * s for c, s in zip(place, strides, strict=True)) for place in others]
        return tuple(
            tuple(self.ranks[first + k * stride] for k in range(self.shape[number])) for first in sorted(firsts)
        )


def is_size(value: Any) -> bool:
    """True for a number of ranks and for -1."""
    return isinstance(value, int) and not isinstance(value, bool) and (value >= 1 or value == -1)


def sizes_for(mesh: Mapping[str, int], num_ranks: int) -> dict[str, int]:
    """The number of ranks along each axis of a mesh of which one axis may be -1.

    Raises:
        ValueError: the mesh does not hold the ranks.
    """
    given = [size for size in mesh.values() if size != -1]
    product, rest = math.prod(given), -1 in mesh.values()
    if num_ranks % product or (not rest and product != num_ranks):
        has = ", ".join(f"{axis} = {size}" for axis, size in mesh.items())
        raise ValueError(
            f"keras-par: a mesh of {has} has {'a multiple of ' if rest else ''}{product} rank(s) but the job has "
            f"{num_ranks}: start as many, or give load_strategy another mesh."
        )
    return {axis: num_ranks // product if size == -1 else size for axis, size in mesh.items()}


def resized(name: str, mesh: Mapping[str, int], sizes: Mapping[str, int] | Sequence[int]) -> dict[str, int]:
    """The mesh of strategy `name` with other sizes: by name, or in its order. An axis without a size is the rest.

    Raises:
        ValueError: the sizes are not for these axes.
    """
    axes = tuple(mesh)
    has = f"strategy '{name}' has the mesh axes {', '.join(map(shown, axes))}, but load_strategy was given"
    if not isinstance(sizes, Mapping):
        if len(sizes) != len(axes):
            raise ValueError(f"keras-par: {has} {len(sizes)} size(s): give one for each axis.")
        sizes = dict(zip(axes, sizes, strict=True))
    unknown = next((axis for axis in sizes if axis not in axes), None)
    if unknown is not None:
        raise ValueError(f"keras-par: {has} '{unknown}', {instead(unknown, axes)}.")
    given = {axis: sizes.get(axis, -1) for axis in axes}
    wrong = next((axis for axis, size in given.items() if not is_size(size)), None)
    if wrong is not None:
        raise ValueError(f"keras-par: {has} {wrong} = {given[wrong]!r}: give it a number of ranks, or -1 for the rest.")
    if list(given.values()).count(-1) > 1:
        raise ValueError(f"keras-par: {has} no size for more than one of them: only one can be the rest of the ranks.")
    return given
