"""Notices that ranks make no progress, asks for their stacks and which hosts answer, and says whose fault it is."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from keras_par.launch.culprit import Hang, find_hang, find_stay, named
from keras_par.launch.job import Job
from keras_par.launch.members import Members

STACK_SECONDS = 3.0  # ranks have to answer
MOST_STACKS = 8  # of ranks that hold up the others
MOST_HOSTS = 64  # each knocks at all others
MOST_NAMED = 3


class Connections:
    """Which hosts of a job answer each other: if two do not, the ranks of all others wait.

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


class HangWatch:
    """Looks at the ranks of a job again and again.

    Args:
        members: the ranks.
        job: that they are of.
    """

    def __init__(self, members: Members, job: Job):
        self._members, self._hang_after, self._folder, self._console = members, job.hang_after, job.folder, job.console
        self.connections = Connections(members)
        self.stacks: dict[int, str] = {}  # that ranks have told since they were asked
        self._aborts = False
        self._told: Hang | None = None  # and not over yet
        self._looks = self._watch()

    def look(self, aborts: bool) -> bool:
        """True once a hang has been told that ends the job.

        Args:
            aborts: True if any does; the first time, what was told is told again. One that cannot pass always does.
        """
        if aborts and not self._aborts:
            self._told = None
        self._aborts = aborts
        return next(self._looks)

    def _watch(self) -> Iterator[bool]:
        """What each look finds."""
        while True:
            hang = self._find()
            if hang is None and self._told is not None:
                self._recover(self._told)
            elif hang is not None and (self._told is None or self._told.culprits != hang.culprits):
                self.connections.ask()
                yield from self._confirm(hang)
            yield False

    def _confirm(self, hang: Hang) -> Iterator[bool]:
        """Tells a hang that lasts, by where ranks say that they are now, which may be long after they told it last."""
        for is_last in (False, True):
            asked = time.monotonic()
            awaited = self._ask(hang)
            while not self._have_answered(awaited, asked) and time.monotonic() < asked + STACK_SECONDS:
                yield False
            before, found = hang, self._find(asked)
            if found is None:
                return
            hang = found
            if is_last or hang.culprits == before.culprits:
                self._told = hang
                yield self._tell(hang)
                return

    def _have_answered(self, awaited: Sequence[int], asked: float) -> bool:
        have_told = all(rank in self.stacks for rank in awaited) and self.connections.are_known
        return have_told and all(member.told > asked for member in self._members.running.values())

    def _find(self, asked: float = 0.0) -> Hang | None:
        """The hang under way; of ranks that were `asked` and have not answered, by what they told before."""
        now, running = time.monotonic(), self._members.running
        if not any(member.quiet(now) >= self._hang_after for member in running.values()):
            return None
        seen = [(each, each.state_at(now) if each.told > asked else each.state) for _, each in sorted(running.items())]
        states = [replace(state, is_writing=state.is_writing or each.channel.is_held) for each, state in seen]
        return find_stay(states, self._hang_after) or find_hang(states, self._members.ended, self._hang_after)

    def _ask(self, hang: Hang) -> Sequence[int]:
        """Asks all ranks where they are, and those that a panel would show for their stacks; returns these."""
        running, self.stacks = self._members.running, {}
        awaited = [rank for rank in shown(hang) if rank in running and not running[rank].state.is_stopped]
        self._members.order("stacks", ranks=awaited)
        self._members.order("look")
        return awaited

    def _tell(self, hang: Hang) -> bool:
        """Shows a hang; True if it ends the job, as where others wait for ranks that are gone, or whose scripts are."""
        running = self._members.running
        cannot_pass = hang.witness is not None and all(
            rank not in running or running[rank].state.is_over for rank in hang.culprits
        )
        ends = self._aborts or cannot_pass
        stacks = {rank: self.stacks.get(rank) or "  it gives none" for rank in shown(hang)}
        text = hang.text + self.connections.places(hang.culprits) + self.connections.broken()
        self._folder.event("hang", text, hang.culprits[0], stacks=stacks)
        then = "The job is ended." if ends else "The job goes on; '--on-hang abort' would end it."
        self._console.panel(f"hang: {named(hang.culprits)}", [f"{text[:1].upper()}{text[1:]}.", then], stacks)
        return ends

    def _recover(self, told: Hang) -> None:
        text = f"the job makes progress again, after {named(told.culprits)} held it up"
        self._console.say(text)
        self._folder.event("recovered", text, told.culprits[0])
        self._told = None


def shown(hang: Hang) -> tuple[int, ...]:
    """The ranks whose stacks are shown."""
    some = hang.culprits[:MOST_STACKS]
    return some if hang.witness is None else (*some, hang.witness)
