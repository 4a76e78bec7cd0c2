"""What follows from a division without more messages: sums that come out divided, and operands that are cut anyway."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from keras_par.plan.layout import Axes

Cuts = dict[int, tuple[Any, list[Axes]]]  # by id: an operand, and how it was cut each time

_keeps: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_keeps", default=False)
_cuts: contextvars.ContextVar[Cuts | None] = contextvars.ContextVar("keras_par_cuts", default=None)


@contextlib.contextmanager
def keeping(keeps: bool) -> Iterator[None]:
    """Within it a product that sums over a divided dim leaves its result divided, along its last dim where it can."""
    token = _keeps.set(keeps)
    try:
        yield
    finally:
        _keeps.reset(token)


def keeps_divided(sizes: list[int | None], axes: list[str | None], num_ranks: int) -> bool:
    """True if a sum of these sizes is to be divided along its last dim."""
    last = sizes[-1] if len(sizes) > 1 and axes[-1] is None else None
    return _keeps.get() and last is not None and last % num_ranks == 0


@contextlib.contextmanager
def cuts_noted() -> Iterator[Cuts]:
    """Notes which operands, alike on all ranks, operations on shards take a part of."""
    found: Cuts = {}
    token = _cuts.set(found)
    try:
        yield found
    finally:
        _cuts.reset(token)


def note_cut(operand: Any, axes: Axes) -> None:
    """Notes that an operation takes these parts of an operand."""
    noted = _cuts.get()
    if noted is not None:
        noted.setdefault(id(operand), (operand, []))[1].append(axes)
