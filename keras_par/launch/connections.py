"""Asks the hosts of a job which others answer them: if two do not reach each other, the ranks of all others wait."""

import contextlib
import itertools
from collections.abc import Sequence

from keras_par.launch.culprit import named
from keras_par.launch.members import Members

MOST_HOSTS = 64  # each knocks at all others
MOST_NAMED = 3


class Connections:
    """Between the hosts of a job.

    Args:
        members: the ranks.
    """

    def __init__(self, members: Members):
        self._members = members
        self._ranks: dict[str, list[int]] = {}  # of each host
        self._unanswered: dict[str, set[str]] = {}  # by the hosts that were asked

    def ask(self) -> None:
        """Has a rank's agent on each host knock at all other hosts."""
        self._ranks, self._unanswered = {}, {}
        for rank, member in sorted(self._members.running.items()):
            self._ranks.setdefault(member.host, []).append(rank)
        if not 1 < len(self._ranks) <= MOST_HOSTS:
            self._ranks = {}
        doors = {}
        for host, ranks in self._ranks.items():
            with contextlib.suppress(OSError):  # it has gone at this moment
                doors[host] = self._members.of_rank[ranks[0]].channel.peer
        for host, ranks in self._ranks.items():
            others = {other: door for other, door in doors.items() if other != host}
            self._members.order("knock", others, (ranks[0],))

    def note(self, host: str, unanswered: list[str]) -> None:
        """Takes in what a host's agent has found."""
        self._unanswered[host] = set(unanswered)

    @property
    def are_known(self) -> bool:
        """True once all hosts have told."""
        return len(self._unanswered) == len(self._ranks)

    def broken(self) -> str:
        """What is wrong between hosts, in words that follow a sentence; empty if nothing is."""
        pairs = [
            f"hosts {self._shown(one)} and {self._shown(other)} do not reach each other"
            for one, other in itertools.combinations(self._ranks, 2)
            if other in self._unanswered.get(one, ()) and one in self._unanswered.get(other, ())
        ]
        return "".join(f"; {pair}" for pair in pairs[:MOST_NAMED])

    def places(self, ranks: Sequence[int]) -> str:
        """On which hosts ranks are, in words that follow a sentence; empty if that tells nothing."""
        members = self._members.of_rank
        if len({member.host for member in members.values()}) < 2 or not len(ranks) <= min(MOST_NAMED, len(members) - 1):
            return ""
        return "".join(f"; rank {rank} is on host {members[rank].host}" for rank in ranks)

    def _shown(self, host: str) -> str:
        return f"{host} ({named(self._ranks[host])})"
