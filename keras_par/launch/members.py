"""The ranks of a running job as the launcher knows them, and orders to them, also to stop all after the same step."""

import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from keras_par.agent.states import Exit, State
from keras_par.agent.wire import Channel
from keras_par.base.heartbeat_page import AT_ONCE, BY_USER, FOR_ANOTHER_WORLD


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


class Ending:
    """The end of an attempt that its user asked for once, or that comes so that other ranks can go on.

    Each rank pauses before its next step, or is in a step from which it comes to one. The most advanced of them has
    begun so many executions, and can begin one more before it sees that it shall pause; so all stop before the one
    after that, or at the end of `fit` if it comes first. Ranks outside of `fit` come to no step: Python's own
    KeyboardInterrupt ends all where they are, if the user asked for the end; for another world all are let go on.

    Args:
        members: the ranks.
        is_of_user: True if the user asked for it.
    """

    def __init__(self, members: Members, is_of_user: bool = True):
        self._members, self._is_of_user = members, is_of_user
        self._answers: dict[int, dict] = {}
        self._is_decided = False
        self.is_given_up = False  # all go on
        members.order("pause", BY_USER if is_of_user else FOR_ANOTHER_WORLD)

    def note_pause(self, rank: int, answer: dict) -> None:
        """Takes in how far a rank is."""
        self._answers[rank] = answer

    def decide(self) -> None:
        """Once all ranks that run have answered, tells them where to stop."""
        running = list(self._members.running)
        if self._is_decided or not all(rank in self._answers for rank in running):
            return
        self._is_decided = True
        answers = [self._answers[rank] for rank in running]
        if all(answer["is_in_fit"] for answer in answers):
            self._members.order("stop_before", max((answer["executions"] for answer in answers), default=0) + 2)
        elif not self._is_of_user:
            self.is_given_up = True
            self._members.order("pause", 0)
        else:
            self._members.order("stop_before", AT_ONCE)
            self._members.order("signal", int(signal.SIGINT))
