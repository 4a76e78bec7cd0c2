"""Keeps the strategy that was set for all threads and past `clear_session`, which would drop it without a word."""

import threading
from typing import Any

from keras.src.distribution import distribution_lib

from keras_par.seam.patch import replace


def install() -> None:
    """Puts the store where `keras.distribution` keeps its one attribute, and moves over what was set before."""
    if not isinstance(distribution_lib.global_state, StrategyStore):
        before = distribution_lib.distribution()
        replace(distribution_lib, "global_state", StrategyStore())
        distribution_lib.set_distribution(before)


class StrategyStore:
    """Has the two functions of Keras's `global_state` that `keras.distribution` calls.

    A thread that has set no strategy has the one that was set last.
    """

    def __init__(self):
        self._newest: Any = None
        self._own = threading.local()

    def set_global_attribute(self, name: str, value: Any) -> None:
        """Sets this thread's strategy, which is also that of threads that set none."""
        self._own.value = self._newest = value

    def get_global_attribute(self, name: str) -> Any:
        """This thread's strategy."""
        return getattr(self._own, "value", self._newest)
