"""Layouts as arithmetic: which slice of a tensor a rank of a mesh holds, and what cannot be divided."""

import difflib
import functools
import re
from collections.abc import Iterable, Sequence

from keras_par.plan.mesh import Mesh

# For each dim of a tensor the mesh axis that divides it, or None.
Axes = tuple[str | None, ...]

MOST_PATTERNS = 2**16  # that are kept compiled


def divided(axes: Sequence[str | None], mesh: Mesh) -> Axes:
    """The layout with None for axes of one rank, which divide nothing."""
    return tuple(axis if axis is not None and mesh.size(axis) > 1 else None for axis in axes)


def shard_of(shape: Sequence[int], axes: Axes, mesh: Mesh, rank: int) -> tuple[slice, ...]:
    """The part of a tensor of `shape` that a rank holds; of dims that divide unevenly the first ranks hold one more."""
    place = mesh.coordinates(rank)
    return tuple(
        slice(0, size) if axis is None else part_of(size, mesh.size(axis), place[axis])
        for size, axis in zip(shape, axes, strict=True)
    )


def part_of(size: int, num_parts: int, place: int) -> slice:
    """One of `num_parts` parts of a dim, whose lengths differ by one at most, as Horovod's reduce-scatter has them."""
    length, rest = divmod(size, num_parts)
    start = length * place + min(place, rest)
    return slice(start, start + length + (place < rest))


def length_of(size: int, num_parts: int, place: int) -> int:
    """The length of `part_of`."""
    part = part_of(size, num_parts, place)
    return part.stop - part.start


def complaint(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh) -> str | None:
    """One phrase about why a tensor of `shape` cannot have this layout, or None."""
    if len(axes) != len(shape):
        return f"the layout {tuple(axes)} has {len(axes)} dim(s) and the shape {tuple(shape)} has {len(shape)}"
    named = [axis for axis in axes if axis is not None]
    unknown = next((axis for axis in named if axis not in mesh.axis_names), None)
    if unknown is not None:
        return f"axis '{unknown}' is not one of the mesh's, which are {list(mesh.axis_names)}"
    twice = next((axis for axis in named if named.count(axis) > 1), None)
    if twice is not None:
        return f"axis '{twice}' divides two dims"
    for dim, (size, axis) in enumerate(zip(shape, axes, strict=True)):
        if axis is not None and size % mesh.size(axis):
            return f"dim {dim} of its shape {tuple(shape)} is not divisible by the {mesh.size(axis)} ranks of '{axis}'"
    return None


def matches(pattern: str, path: str) -> bool:
    """True if a pattern is the whole of a path, as a regular expression or as it stands."""
    return pattern == path or compiled(pattern).fullmatch(path) is not None


@functools.lru_cache(MOST_PATTERNS)
def compiled(pattern: str) -> re.Pattern:
    """A pattern, compiled once; Python itself remembers no more than some hundred.

    Raises:
        ValueError: it is no regular expression.
    """
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"keras-par: pattern '{pattern}' is no regular expression: {error}: correct it.") from None


def unmatched(patterns: Iterable[str], paths: Sequence[str]) -> list[str]:
    """The patterns that match no path."""
    return [pattern for pattern in patterns if not any(matches(pattern, path) for path in paths)]


def nearest(pattern: str, paths: Iterable[str], count: int = 3) -> list[str]:
    """The paths most alike a pattern, best first."""
    plain = re.sub(r"[\\.*+?^$()\[\]{}|]", "", pattern)

    def likeness(path: str) -> float:
        return difflib.SequenceMatcher(None, plain, path, autojunk=False).ratio()

    return sorted(paths, key=likeness, reverse=True)[:count]
