"""Makes patterns of a layout map from the layouts of single variables: layers that are numbered share one."""

import re
from collections.abc import Iterable, Mapping

from keras_par.catalogue.strategy_file import Entry
from keras_par.plan.layout import Axes, matches
from keras_par.searching.classes import without_numbers


def entries(layouts: Mapping[str, Axes], paths: Iterable[str]) -> tuple[Entry, ...]:
    """Patterns that give these variables their layouts, and none to others.

    Args:
        layouts: of the variables that are divided, by path.
        paths: of all variables.
    """
    found: dict[str, Axes] = {}
    others = set(paths)
    for path, axes in layouts.items():
        if any(matches(pattern, path) for pattern in found):
            continue
        pattern = pattern_of(path)
        alike = {other for other in others if matches(pattern, other)}
        if any(layouts.get(other) != axes for other in alike):
            pattern = re.escape(path)
        found[pattern] = axes
    return tuple(Entry(pattern, axes) for pattern, axes in found.items())


def pattern_of(path: str) -> str:
    """A pattern for a path and those that differ in numbers alone."""
    return re.escape(without_numbers(path)).replace(r"\#", r"\d+")
