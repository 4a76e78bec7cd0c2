"""Jobs on hosts that one machine plays, and what they leave there."""

import contextlib
import functools
import re
import subprocess
from collections.abc import Callable, Collection, Iterator

from tests.hosts.namespaces import Hosts
from tests.launcher import Ended, Job
from tests.patience import comes_to_be

SLOWLY = {"PAUSE": "0.1"}  # seconds, of each step: a training of few steps that lasts
GONE_SECONDS = 20.0  # for processes that were ended to be reaped
ENDED_WITHIN = 20.0  # seconds from a trouble to the end of its job


class Residents:
    """The processes that are on hosts before a job, which are theirs.

    Args:
        hosts: that are up.
    """

    def __init__(self, hosts: Hosts):
        self._hosts = hosts
        self._before = {name: set(hosts.pids(name)) for name in hosts.names}

    def of(self, host: str) -> Collection[int]:
        """Those of a host."""
        return self._before[host]

    def left(self, seconds: float = GONE_SECONDS) -> list[str]:
        """The commands of processes that have come to the hosts since and do not go within so many seconds."""
        comes_to_be(lambda: not self._new(), seconds)
        return [command for pid in self._new() if (command := command_of(pid))]

    def _new(self) -> list[int]:
        return [pid for name in self._hosts.names for pid in set(self._hosts.pids(name)) - self._before[name]]


def command_of(pid: int) -> str:
    done = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def began(trouble: str, ended: Ended) -> float:
    """When a rank says that a trouble began, by its own clock."""
    [when] = re.findall(rf"trouble {trouble} at ([\d.]+)", ended.stdout)
    return float(when)


def start(hosts: Hosts, *arguments, **variables) -> Job:
    """Starts a job on the first host."""
    return Job(*arguments, within=hosts.within(hosts.names[0]), **variables)


@contextlib.contextmanager
def starter(hosts: Hosts) -> Iterator[Callable[..., Job]]:
    """A function that starts a job on the first host; at the end nothing of any may be left on any host."""
    before = Residents(hosts)
    yield functools.partial(start, hosts)
    left = before.left()
    for name in hosts.names:
        hosts.end(name, before.of(name))
    assert not left, left
