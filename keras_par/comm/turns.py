"""Lets the threads of a process take turns at what all ranks do together, in one order on all ranks: rank 0's."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

STUCK_SECONDS = 30.0
PATIENCE_SECONDS = 60.0  # for a thread that has not come to its call yet, where there is one
# Files of Python's in which a thread stands that waits for another one.
WAITING = ("threading.py", "_base.py", "queue.py", "thread.py")


class Turns:
    """A lock that a thread may take again, and lend to others until one of them has had its turn."""

    def __init__(self):
        self._changed = threading.Condition()
        self._owner: int | None = None
        self._call = ""
        self._depth = self._num_begun = 0
        self._ended = 0.0  # when the last turn did

    @property
    def is_nested(self) -> bool:
        """True within a turn that is itself within this thread's turn."""
        return self._depth > 1

    @contextlib.contextmanager
    def turn(self, call: str) -> Iterator[None]:
        """Around a call that ranks make together, which other threads' calls wait for.

        Raises:
            RuntimeError: the thread whose turn it is waits for this one, as in a callback that joins it.
        """
        own = threading.get_ident()
        if self._owner != own:
            with self._changed:
                self._wait_for_owner(call)
                self._take(own)
                self._call = call
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                with self._changed:
                    self._ended = time.monotonic()
                    self._leave()

    def give_way(self, deadline: float) -> None:
        """Lets another thread take a turn before this one goes on, which it does at the deadline if none has come.

        Args:
            deadline: by `time.monotonic()`.
        """
        own, depth, call = threading.get_ident(), self._depth, self._call
        with self._changed:
            begun, self._depth = self._num_begun, 0
            self._leave()
            self._changed.wait_for(lambda: self._num_begun != begun, max(0.0, deadline - time.monotonic()))
            self._changed.wait_for(lambda: self._owner is None)
            self._take(own)
            self._depth, self._call = depth, call

    def deadline(self, since: float) -> float:
        """Until when it makes sense to give way: some time after the last turn ended, or after `since`."""
        own = threading.get_ident(), threading.main_thread().ident
        others = [t for t in threading.enumerate() if t.ident not in own and not t.name.startswith("kp-")]
        return max(since, self._ended) + (PATIENCE_SECONDS if others else 1.0)

    def _take(self, thread: int) -> None:
        self._owner = thread
        self._num_begun += 1
        self._changed.notify_all()

    def _leave(self) -> None:
        self._owner = None
        self._changed.notify_all()

    def _wait_for_owner(self, call: str) -> None:
        stuck = 0.0
        while self._owner is not None:
            self._changed.wait(1.0)
            stuck = stuck + 1.0 if waits_for_a_thread(self._owner) else 0.0
            if stuck >= STUCK_SECONDS:
                raise RuntimeError(
                    f"keras-par: {call} in thread '{threading.current_thread().name}' has to wait for {self._call}, "
                    "whose thread waits for this one: call both in one thread."
                )


def waits_for_a_thread(thread: int | None) -> bool:
    """True if a thread waits for something that another thread does."""
    frame = None if thread is None else sys._current_frames().get(thread)
    return frame is not None and Path(frame.f_code.co_filename).name in WAITING


def name_of_thread() -> str | None:
    """That of the thread that runs, None for the main one."""
    thread = threading.current_thread()
    return None if thread is threading.main_thread() else thread.name


turns = Turns()
