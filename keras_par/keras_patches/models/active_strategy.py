"""Keeps the strategy that was set for all threads and past `clear_session`, which would drop it without a word."""

import threading
from typing import Any


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


STORE = StrategyStore()
