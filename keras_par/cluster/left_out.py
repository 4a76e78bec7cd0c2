"""Remembers which hosts a job does without for a while, because they were lost or ranks died there again and again."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_par.cluster.hosts import Host

FIRST_SECONDS, MOST_SECONDS = 10.0, 600.0  # that a host is left out: at first, and after many losses


@dataclass
class Absence:
    """How often a host was left out, how many of its slots are, and until when by the clock."""

    times: int
    slots: int | None  # None for all
    until: float

    @property
    def seconds(self) -> float:
        """For which it is left out: twice as long each time."""
        return min(FIRST_SECONDS * 2 ** (self.times - 1), MOST_SECONDS)


class LeftOut:
    """Hosts that are left out, all or some of their slots.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._absences: dict[str, Absence] = {}

    def add(self, name: str, slots: int | None = None) -> float:
        """Leaves a host out, or so many of its slots besides those that are; returns for how many seconds."""
        before = self._absences.get(name, Absence(0, 0, 0.0))
        is_over = self._clock() >= before.until
        more = None if slots is None else slots + (0 if is_over else before.slots or 0)
        absence = self._absences[name] = Absence(before.times + 1, more, 0.0)
        absence.until = self._clock() + absence.seconds
        return absence.seconds

    def without(self, hosts: Sequence[Host]) -> list[Host]:
        """The hosts with the slots that they have now, without those that have none."""
        found = [Host(host.name, host.slots - self._missing(host)) for host in hosts]
        return [host for host in found if host.slots > 0]

    def _missing(self, host: Host) -> int:
        absence = self._absences.get(host.name)
        if absence is None or self._clock() >= absence.until:
            return 0
        return host.slots if absence.slots is None else absence.slots
