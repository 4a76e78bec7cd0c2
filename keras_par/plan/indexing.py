"""How the division of a tensor goes on when it is indexed, as arithmetic."""

from typing import Any

from keras_par.plan.layout import Axes


def indexed(axes: Axes, index: Any) -> Axes | None:
    """The layout after `tensor[index]`; None if a divided dim is not taken as a whole, or an index is a tensor."""
    dims = dims_of_index(index if isinstance(index, tuple) else (index,), len(axes))
    if dims is None or any(axes[dim] is not None for dim, entry in dims if not is_all(entry)):
        return None
    return tuple(None if entry is None else axes[dim] for dim, entry in dims if not isinstance(entry, int))


def is_all(entry: Any) -> bool:
    """True if an index's entry takes all of a dim, or makes a new one."""
    return entry is None or entry == slice(None)


def dims_of_index(entries: tuple, ndim: int) -> list[tuple[int, Any]] | None:
    """Each entry of an index with the dim it is for, all dims included; None for indices by tensors and arrays.

    New dims, which have the entry None, are for no dim, here -1.
    """
    if not all(entry is None or entry is Ellipsis or isinstance(entry, (int, slice)) for entry in entries):
        return None
    missing = ndim - sum(entry is not None and entry is not Ellipsis for entry in entries)
    if Ellipsis not in entries:
        entries = (*entries, Ellipsis)
    place = entries.index(Ellipsis)
    entries = (*entries[:place], *[slice(None)] * missing, *entries[place + 1 :])
    found, dim = [], 0
    for entry in entries:
        found.append((-1 if entry is None else dim, entry))
        dim += entry is not None
    return found
