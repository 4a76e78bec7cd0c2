"""The ranks of a running job as the launcher knows them, and orders to them."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from keras_par.agent.states import Exit, State
from keras_par.agent.wire import Channel


@dataclass
class Member:
    """What the launcher knows of one rank."""

    channel: Channel
    host: str
    state: State
    end: Exit | None = None
    heard: float = field(default_factory=time.monotonic)  # when its agent last said something
    told: float = field(default_factory=time.monotonic)  # when its agent last told its state
    beat: float = 1.0  # seconds from one such time to the next
    ahead: float = 0.0  # seconds by which its host's clock is ahead of this one's
    session: str | None = None  # the engine's folder on its host

    @property
    def is_there(self) -> bool:
        """True while the agent is, as far as can be known."""
        return self.channel.is_open and (self.end is None or not self.end.has_vanished)

    def quiet(self, now: float) -> float:
        """Seconds without progress, if there was none since its agent told, and at most until it should have again."""
        return self.state.quiet + min(now - self.told, self.beat)

    def state_at(self, now: float) -> State:
        """The state that was told last, if nothing has changed since then."""
        state, later = self.state, min(now - self.told, self.beat)
        return replace(
            state,
            quiet=state.quiet + later,
            phase_seconds=state.phase_seconds + later,
            python_seconds=state.python_seconds and state.python_seconds + later,
        )


@dataclass
class Members:
    """The ranks whose agents have connected, by their numbers."""

    of_rank: dict[int, Member] = field(default_factory=dict)
    running: dict[int, Member] = field(init=False)  # those that have not ended

    def __post_init__(self) -> None:
        self.running = {rank: member for rank, member in self.of_rank.items() if member.end is None}

    def add(self, rank: int, member: Member) -> Member:
        """Takes in a rank that runs."""
        self.of_rank[rank] = self.running[rank] = member
        return member

    def note_end(self, end: Exit) -> None:
        """Takes in how a rank ended."""
        self.of_rank[end.rank].end = end
        self.running.pop(end.rank, None)

    @property
    def ended(self) -> dict[int, Exit]:
        """How the others ended."""
        return {rank: member.end for rank, member in sorted(self.of_rank.items()) if member.end is not None}

    def order(self, what: str, content: Any = True, ranks: Collection[int] | None = None) -> None:
        """Sends an order to the running ranks, or to some of them."""
        for rank in list(self.running if ranks is None else ranks):
            if rank in self.running:
                self.running[rank].channel.send({what: content})

    def dismiss(self, ends_engine: bool, keeps_memory: bool) -> None:
        """Lets all agents go.

        Args:
            ends_engine: they end what started them, which sleeps for a while where ranks were killed.
            keeps_memory: they leave the job's checkpoints in the memory of their hosts.
        """
        for member in self.of_rank.values():
            member.channel.send({"dismiss": {"ends_engine": ends_engine, "keeps_memory": keeps_memory}})
