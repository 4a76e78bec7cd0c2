"""Looks for hosts that come and go while a world runs."""

import threading
import time
from collections.abc import Sequence

from keras_par.cluster.hosts import Place
from keras_par.cluster.reach import Ssh, obstacle
from keras_par.launch.next_world import LOOK_SECONDS, Worlds

ASK_SECONDS = 5.0  # from one question whether a silent host is there to the next


class Watch:
    """Looks in a thread, because scripts and ssh may take long.

    Args:
        worlds: of the job.
        current: where the ranks of the running world are.
        ssh: how to get to hosts.
    """

    def __init__(self, worlds: Worlds, current: Sequence[Place], ssh: Ssh):
        self._worlds, self._current, self._ssh = worlds, current, ssh
        self._is_over = threading.Event()
        self._asked: dict[str, tuple[float, bool | None]] = {}  # when ssh was asked for a host; if it is there
        self.reason: str | None = None  # why another world should take the place of this one
        threading.Thread(target=self._look, name="kp-watch", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._is_over.set()

    def is_lost(self, host: str) -> bool:
        """True once ssh does not reach a host, which it is asked again and again while this is called."""
        asked, is_there = self._asked.get(host, (0.0, True))
        if is_there and time.monotonic() - asked > ASK_SECONDS:
            self._asked[host] = (time.monotonic(), None)
            threading.Thread(target=self._ask, args=[host], daemon=True).start()
        return is_there is False

    def _ask(self, host: str) -> None:
        is_there = obstacle(host, self._ssh) is None
        self._asked[host] = (time.monotonic(), is_there)

    def _look(self) -> None:
        before = None  # a list of hosts may be looked at while it is written
        while not self._is_over.wait(LOOK_SECONDS):
            found = self._worlds.better_than(self._current)
            self.reason = found if found == before else None
            before = found
