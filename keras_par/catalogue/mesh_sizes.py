"""How many ranks stand along each axis of a mesh of which one axis may be the rest of them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_par.catalogue.suggestion import instead, shown


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
