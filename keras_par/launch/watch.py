"""Looks for hosts that come and go while a world runs."""

import threading
from collections.abc import Sequence

from keras_par.cluster.hosts import Place
from keras_par.cluster.reach import Ssh, obstacle
from keras_par.launch.worlds import LOOK_SECONDS, Worlds


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
        self._asked: dict[str, bool | None] = {}  # silent hosts, and whether ssh reaches them, None if not known yet
        self.reason: str | None = None  # why another world should take the place of this one
        threading.Thread(target=self._look, name="kp-watch", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._is_over.set()

    def is_lost(self, host: str) -> bool:
        """True once ssh does not reach a host, which it is asked when this is called first."""
        if host not in self._asked:
            self._asked[host] = None
            threading.Thread(target=self._ask, args=[host], daemon=True).start()
        return self._asked[host] is False

    def forget(self, host: str) -> None:
        """A host has spoken again."""
        self._asked.pop(host, None)

    def _ask(self, host: str) -> None:
        is_there = obstacle(host, self._ssh) is None
        if host in self._asked:
            self._asked[host] = is_there

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.reason = self._worlds.better_than(self._current)
