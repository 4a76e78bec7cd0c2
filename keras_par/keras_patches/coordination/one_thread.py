"""Refuses a call of a second thread while one is under way: ranks cannot tell which of them another rank makes."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class OneThread:
    """A lock that a thread may take again, and that no other thread waits for."""

    def __init__(self):
        self._lock = threading.RLock()
        self._call = self._thread = ""

    def during(self, call: str) -> contextlib.AbstractContextManager:
        """To be used around a call that all ranks make, within which its callbacks may make others.

        Raises:
            RuntimeError: another thread's call is under way.
        """
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"keras-par: {call} in thread '{threading.current_thread().name}' cannot begin while {self._call} is "
                f"under way in thread '{self._thread}', as ranks make one call at a time: let one thread make them one "
                "after another."
            )
        return self._held(call)

    @contextlib.contextmanager
    def _held(self, call: str) -> Iterator[None]:
        before = self._call, self._thread
        try:
            self._call, self._thread = call, threading.current_thread().name
            yield
        finally:
            self._call, self._thread = before
            self._lock.release()


one_thread = OneThread()


def told_apart(model_name: str, rows: Callable[[], int | None]) -> list | None:
    """What must be equal on all ranks in a call of another thread than the main one, whose order may differ there.

    Args:
        model_name: that of the model.
        rows: returns a checksum of what the call is given, None if it may differ between ranks or cannot be known.
    """
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return None
    checksum = rows()
    return [model_name, thread.name if checksum is None else checksum]
