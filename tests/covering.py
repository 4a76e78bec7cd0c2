"""Covering arrays: few combinations of options in which every pair of values occurs, in place of all combinations."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

Row = dict[str, str]


def fits(row: Mapping[str, str], unfit: Sequence[Mapping[str, Collection[str]]]) -> bool:
    """True unless the row has, on all axes of something that does not fit together, one of the values named there."""
    return not any(all(row.get(axis) in values for axis, values in each.items()) for each in unfit)


def covering(
    axes: Mapping[str, Sequence[str]],
    strength: int,
    unfit: Sequence[Mapping[str, Collection[str]]] = (),
    rows: Sequence[Row] = (),
) -> list[Row]:
    """Rows in which all values of each `strength` axes meet that fit together, besides those that meet in given ones.

    Greedy, as in Cohen, Dalal, Fredman and Patton, "The AETG System" (1997): each row is built around what is missing
    first, value by value of what covers most. Among equals it is the value that its axis names first.
    """
    found: list[Row] = []
    missing = dict.fromkeys(each for each in meetings(axes, strength) if fits(dict(each), unfit))
    for row in rows:
        _strike(row, strength, missing)
    while missing:
        seed = next(iter(missing))
        row = _completed(dict(seed), axes, strength, unfit, missing)
        del missing[seed]  # what nothing else fits to can meet in no row
        if row is not None:
            found.append({axis: row[axis] for axis in axes})
            _strike(row, strength, missing)
    return found


def fewest(rows: Sequence[Row], of: Callable[[Row], set]) -> list[Row]:
    """Few of the rows, such that they have together all that `of` finds in any row."""
    missing, found = set().union(*map(of, rows)), []
    while missing:
        found.append(max(rows, key=lambda row: len(missing & of(row))))
        missing -= of(found[-1])
    return found


def meetings(axes: Mapping[str, Sequence[str]], strength: int) -> Iterator[tuple]:
    """All ways in which values of `strength` axes can meet, each a tuple of (axis, value)."""
    for names in itertools.combinations(sorted(axes), strength):
        for values in itertools.product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def _completed(row: Row, axes, strength: int, unfit, missing) -> Row | None:
    left = [axis for axis in axes if axis not in row]
    if not left:
        return row
    axis = max(left, key=lambda each: len(axes[each]))
    candidates = [row | {axis: value} for value in axes[axis]]
    candidates = [each for each in candidates if fits(each, unfit)]
    candidates.sort(key=lambda each: -sum(met in missing for met in _met(each, axis, strength)))
    completed = (_completed(each, axes, strength, unfit, missing) for each in candidates)
    return next((each for each in completed if each is not None), None)


def _met(row: Row, axis: str, strength: int) -> Iterator[tuple]:
    """What the value of `axis` meets in a row."""
    others = sorted(other for other in row if other != axis)
    for names in itertools.combinations(others, strength - 1):
        yield tuple((name, row[name]) for name in sorted((*names, axis)))


def _strike(row: Row, strength: int, missing: dict) -> None:
    for names in itertools.combinations(sorted(row), strength):
        missing.pop(tuple((name, row[name]) for name in names), None)
