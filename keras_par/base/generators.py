"""The states of Python's and NumPy's global generators of random numbers, as JSON has them, and back."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def states() -> list:
    """Those of both."""
    return [random.getstate(), numpy_state()]


def restore(found: Sequence[Any]) -> None:
    """Gives both the states that `states` has found."""
    python, numpy = found
    set_python(python)
    set_numpy(numpy)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """After it both are where they were."""
    before = states()
    try:
        yield
    finally:
        restore(before)


def set_python(state: Sequence[Any], generator: Any = random) -> None:
    """Gives Python's generator, or another of its kind, the state that its `getstate` has found."""
    version, numbers, gauss = state
    generator.setstate((version, tuple(numbers), gauss))


def numpy_state() -> list:
    """That of NumPy's generator."""
    name, keys, *rest = np.random.get_state()
    return [name, np.asarray(keys).tolist(), *rest]


def set_numpy(state: Sequence[Any]) -> None:
    """Gives NumPy's generator the state that `numpy_state` has found."""
    name, keys, *rest = state
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
