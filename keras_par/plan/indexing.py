"""Names the dims of a tensor that is indexed, so that its division goes on where it can."""

from typing import Any

from keras_par.plan.division import Named


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
