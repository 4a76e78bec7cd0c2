"""Refuses a call of a second thread while one is under way: ranks cannot tell which of them another rank makes."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class OneThread:
    """A lock that a thread may take again, and that no other thread waits for."""

    def __init__(self):
        self._lock = threading.RLock()
        self._call = self._thread = ""

    @contextlib.contextmanager
    def during(self, call: str) -> Iterator[None]:
        """Around a call that all ranks make, within which its callbacks may make others.

        Raises:
            RuntimeError: another thread's call is under way.
        """
        own = threading.current_thread().name
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"keras-par: {call} in thread '{own}' cannot begin while {self._call} is under way in thread "
                f"'{self._thread}', as ranks make one call at a time: let one thread make them one after another."
            )
        before = self._call, self._thread
        self._call, self._thread = call, own
        try:
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
