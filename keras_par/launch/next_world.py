"""Decides which ranks a job has next: as many as its user allows, on the hosts that there are just now."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keras_par.cluster.hosts import ClusterError, Host, Place, places
from keras_par.cluster.reach import Ssh, is_local, obstacle, obstacles

LOOK_SECONDS = 1.0  # from one look for hosts to the next
UNREACHABLE_SECONDS = 10.0  # until ssh tries a host again
FIRST_SECONDS, MOST_SECONDS = 10.0, 600.0  # that a host is left out: at first, and after many losses
ASK_SECONDS = 5.0  # from one question whether a silent host is there to the next


@dataclass(frozen=True)
class Limits:
    """How many ranks a world may have, and on how many hosts; `most` of None is as many as fit.

    Args:
        least: ranks.
        most: ranks.
        first: ranks that the first world waits for.
        least_hosts: hosts.
        most_hosts: hosts.
    """

    least: int
    most: int | None
    first: int
    least_hosts: int = 1
    most_hosts: int | None = None


class FixedWorlds:
    """The worlds of a job, one after another, here the same each time.

    Args:
        found: where its ranks run.
    """

    def __init__(self, found: Sequence[Place]):
        self._found = list(found)

    def next(self, is_over: Callable[[], bool]) -> list[Place]:
        """Where the ranks of the next world run; waits for hosts.

        Args:
            is_over: says that the user does not want to wait any more.

        Raises:
            ClusterError: there are too few hosts.
        """
        return self._found

    def better_than(self, current: Sequence[Place]) -> str | None:
        """Why another world should take the place of one that runs, in words; None if it should not."""
        return None

    def lose(self, host: str) -> None:
        """Takes in that a host is gone, or cannot take part."""

    def blame(self, host: str) -> None:
        """Takes in that a rank of a host was killed again before the job had come further."""


class AwaitedWorlds(FixedWorlds):
    """The same world each time, once the hosts that were lost are back.

    Args:
        found: where its ranks run.
        timeout: seconds to wait for hosts.
        ssh: how to get to them.
        say: tells the user a sentence.
    """

    def __init__(self, found: Sequence[Place], timeout: float, ssh: Ssh, say: Callable[[str], None]):
        super().__init__(found)
        self._timeout, self._ssh, self._say = timeout, ssh, say
        self._lost: list[str] = []

    def next(self, is_over: Callable[[], bool]) -> list[Place]:
        wait = Wait(self._timeout, is_over, self._say)
        while missing := obstacles(self._lost, self._ssh):
            host, why = next(iter(missing.items()))
            wait.go_on(
                f"waiting for host {host}, which cannot be reached ({why})",
                f"host {host} cannot be reached after {self._timeout:g} s ({why}): bring it back and start again, or "
                "give --min-np to go on without lost hosts.",
            )
        self._lost = []
        return self._found

    def lose(self, host: str) -> None:
        self._lost.append(host)


class Wait:
    """Waiting for hosts, which is told once.

    Args:
        seconds: that it may take.
        is_over: says that the user does not want to wait any more.
        say: tells the user a sentence.
    """

    def __init__(self, seconds: float, is_over: Callable[[], bool], say: Callable[[str], None]):
        self._deadline, self._is_over, self._say = time.monotonic() + seconds, is_over, say
        self._is_told = False

    def go_on(self, what: str, complaint: str) -> None:
        """Waits a moment.

        Raises:
            ClusterError: it has taken too long.
        """
        if self._is_over() or time.monotonic() > self._deadline:
            raise ClusterError(f"keras-par: {complaint}")
        if not self._is_told:
            self._is_told = True
            self._say(what)
        time.sleep(LOOK_SECONDS)


class LeftOut:
    """Hosts that a job does without for a while, or without some of their slots: lost, or ranks die there again.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._times: Counter[str] = Counter()  # that a host was left out
        self._slots: dict[str, float] = {}  # that it lacks
        self._until: dict[str, float] = {}

    def add(self, name: str, slots: float = math.inf) -> float:
        """Leaves a host out, or so many more of its slots; returns for how many seconds, twice as long each time."""
        self._slots[name] = self._missing(name) + slots
        self._times[name] += 1
        seconds = min(FIRST_SECONDS * 2 ** (self._times[name] - 1), MOST_SECONDS)
        self._until[name] = self._clock() + seconds
        return seconds

    def without(self, hosts: Sequence[Host]) -> list[Host]:
        """The hosts with the slots that they have now, without those that have none."""
        left = [(host.name, host.slots - self._missing(host.name)) for host in hosts]
        return [Host(name, int(slots)) for name, slots in left if slots > 0]

    def _missing(self, name: str) -> float:
        return self._slots[name] if self._clock() < self._until.get(name, -math.inf) else 0


class ChangingWorlds(FixedWorlds):
    """Worlds of the hosts that there are when each begins.

    Args:
        read: gives the hosts that the user names just now.
        limits: of the worlds.
        timeout: seconds to wait for hosts.
        ssh: how to get to them.
        say: tells the user a sentence.
    """

    def __init__(
        self, read: Callable[[], list[Host]], limits: Limits, timeout: float, ssh: Ssh, say: Callable[[str], None]
    ):
        self._read, self._limits, self._timeout, self._ssh, self._say = read, limits, timeout, ssh, say
        self._left_out = LeftOut()
        self._unreachable: dict[str, float] = {}  # hosts, and until when they are not tried again
        self._is_first = True
        self._told = ""  # what was wrong with the hosts' description

    def next(self, is_over: Callable[[], bool]) -> list[Place]:
        least = max(self._limits.first if self._is_first else self._limits.least, 1)
        wait = Wait(self._timeout, is_over, self._say)
        while len(found := self._places_if_known()) < least:
            wait.go_on(
                f"waiting for hosts: {len(found)} rank(s) fit now, and {least} are the least",
                f"no {least} rank(s) fit into the hosts that there are, after {self._timeout:g} s: bring hosts "
                "back, or lower --min-np.",
            )
        self._is_first = False
        return found

    def better_than(self, current: Sequence[Place]) -> str | None:
        used = Counter(place.host for place in current)
        try:
            listed = {host.name: host.slots for host in self._read()}
            gone = [host for host, count in used.items() if listed.get(host, 0) < count]
            if not gone and len(current) == self._limits.most:
                return None
            found = self._places(known=tuple(used))
        except ClusterError as error:
            self._tell_once(str(error).removeprefix("keras-par: "))
            return None
        if len(found) < max(self._limits.least, 1):
            return None
        if gone:
            return f"host {gone[0]} has fewer slots now"
        return f"{len(found)} ranks fit now" if len(found) > len(current) else None

    def lose(self, host: str) -> None:
        if not is_local(host):
            seconds = self._left_out.add(host)
            self._say(f"host {host} is left out for {seconds:.0f} s")

    def blame(self, host: str) -> None:
        seconds = self._left_out.add(host, slots=1)
        self._say(f"host {host} gets one rank less for {seconds:.0f} s, because ranks are killed there again and again")

    def _places_if_known(self) -> list[Place]:
        """None where the hosts' description is wrong just now, as a file that is being written."""
        try:
            return self._places(known=())
        except ClusterError as error:
            self._tell_once(str(error).removeprefix("keras-par: "))
            return []

    def _places(self, known: Sequence[str]) -> list[Place]:
        """Where as many ranks as are allowed fit; empty if too few do. Hosts that are `known` are taken to be there."""
        found = self._left_out.without(self._read())
        out_of_reach = self._out_of_reach([host.name for host in found if host.name not in known])
        found = [host for host in found if host.name not in out_of_reach][: self._limits.most_hosts]
        slots = sum(host.slots for host in found)
        number = slots if self._limits.most is None else min(slots, self._limits.most)
        return places(number, found) if len(found) >= self._limits.least_hosts else []

    def _out_of_reach(self, names: list[str]) -> set[str]:
        """Those of the hosts that ssh does not reach, or did not reach a moment ago."""
        now = time.monotonic()
        late = {name for name in names if self._unreachable.get(name, now) > now}
        found = obstacles([name for name in names if name not in late], self._ssh)
        for name, why in found.items():
            if name not in self._unreachable:
                self._say(f"host {name} cannot be reached ({why}): the job does without it until it can")
            self._unreachable[name] = time.monotonic() + UNREACHABLE_SECONDS
        for name in set(names) - late - set(found):
            self._unreachable.pop(name, None)
        return late | set(found)

    def _tell_once(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._say(sentence)


class Watch:
    """Looks for hosts that come and go while a world runs, in a thread, because scripts and ssh may take long.

    Args:
        worlds: of the job.
        current: where the ranks of the running world are.
        ssh: how to get to hosts.
    """

    def __init__(self, worlds: FixedWorlds, current: Sequence[Place], ssh: Ssh):
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
