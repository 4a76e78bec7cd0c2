"""Says in which layer of the model a collective is issued, so that counts and plans can be read."""

import contextlib
import contextvars
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_find: Callable[[], str] | None = None
_told: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("keras_par_place", default=None)

PACKAGE = str(Path(__file__).resolve().parents[1])
# Code between a layer and a collective, which says nothing about the model.
BETWEEN = (
    PACKAGE,
    *(f"keras/src/{room}/" for room in ("ops", "backend", "utils")),
    "/tensorflow/",
)


def find_by(find: Callable[[], str]) -> None:
    """Says how to find the path of the layer under way; it may be empty."""
    global _find
    _find = find


def current() -> tuple[str, str]:
    """The layer under way, and the line of code, as "dense.py:132", that asked for what is done."""
    told = _told.get()
    return told if told is not None else ("" if _find is None else _find(), source())


@contextlib.contextmanager
def within(place: tuple[str, str]) -> Iterator[None]:
    """Within it `current` is `place`: a backward pass belongs to the layer of its forward pass."""
    token = _told.set(place)
    try:
        yield
    finally:
        _told.reset(token)


def source() -> str:
    """The innermost line outside of this package, TensorFlow, and what Keras has between a layer and them."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not any(part in path for part in BETWEEN) and not path.startswith("<"):
            return f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
