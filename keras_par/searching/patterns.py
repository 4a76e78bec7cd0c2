"""Paths of variables and layers that differ in numbers only, and the patterns of a layout map that they share."""

import re
from collections.abc import Iterable, Mapping

from keras_par.plan.layout import Axes
from keras_par.plan.strategy_file import Entry


def without_numbers(path: str) -> str:
    """A path in which layers that were numbered have one name."""
    return re.sub(r"\d+", "#", path)


def entries(layouts: Mapping[str, Axes], paths: Iterable[str]) -> tuple[Entry, ...]:
    """Patterns that give these variables their layouts, and none to others.

    Args:
        layouts: of the variables that are divided, by path.
        paths: of all variables.
    """
    alike: dict[str, set[Axes | None]] = {}
    for path in paths:
        alike.setdefault(without_numbers(path), set()).add(layouts.get(path))
    found: dict[str, Axes] = {}
    for path, axes in layouts.items():
        is_common = len(alike[without_numbers(path)]) == 1
        found[pattern_of(path) if is_common else re.escape(path)] = axes
    return tuple(Entry(pattern, axes) for pattern, axes in found.items())


def names(some: Iterable[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match these names, and none of the others."""
    return tuple(entry.pattern for entry in entries(dict.fromkeys(some, ()), all_names))


def pattern_of(path: str) -> str:
    """A pattern for a path and those that differ in numbers alone."""
    return re.escape(without_numbers(path)).replace(r"\#", r"\d+")
