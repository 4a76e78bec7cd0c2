"""Says in which layer of the model a collective is issued, so that counts and plans can be read."""

import contextlib
import contextvars
import os
import sys
from collections.abc import Callable, Iterator

from keras_par.base.user_code import PACKAGE, is_of_user

# The path of the layer under way, and the line of code that made it as "model.py:12"; either may be empty.
Found = tuple[str, str]

_find: Callable[[], Found] | None = None
_told: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("keras_par_place", default=None)

# Code between a layer and a collective, which says nothing about the model.
BETWEEN = ("<", f"{PACKAGE}{os.sep}", *(f"keras/src/{room}/" for room in ("ops", "backend", "utils")), "/tensorflow/")
TRAINER = "keras/src/backend/tensorflow/trainer.py"


def find_by(find: Callable[[], Found]) -> None:
    """Says how to find the layer under way."""
    global _find
    _find = find


def current() -> tuple[str, str]:
    """The layer under way, and the line of code, as "dense.py:132", that asked for what is done."""
    told = _told.get()
    if told is not None:
        return told
    layer, made_at = ("", "") if _find is None else _find()
    return layer, source(made_at)


@contextlib.contextmanager
def within(place: tuple[str, str]) -> Iterator[None]:
    """Within it `current` is `place`: a backward pass belongs to the layer of its forward pass."""
    token = _told.set(place)
    try:
        yield
    finally:
        _told.reset(token)


def source(made_at: str = "") -> str:
    """The line of code, as "model.py:12", that asked for what is done.

    It is the user's within the step, else the one where the layer was made, else the one that called `fit`; where none
    is known, the innermost outside of this package, TensorFlow, and what Keras has between a layer and them.
    """
    innermost, in_step = "", True
    for path, line in lines():
        if is_of_user(path):
            return line if in_step else made_at or line
        in_step = in_step and not path.endswith(TRAINER)
        if not innermost and not any(part in path for part in BETWEEN):
            innermost = line
    return made_at or innermost


def line_of_user() -> str:
    """The innermost line of code of the user's that is under way, empty where there is none."""
    return next((line for path, line in lines() if is_of_user(path)), "")


def lines() -> Iterator[tuple[str, str]]:
    """The paths, and places such as "model.py:12", of the lines of code that are under way, the innermost first."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        yield path, f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
