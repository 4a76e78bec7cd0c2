"""Lets agents in, tells each what it runs, shows their output, passes on what else they say, notices who is silent."""

import math
import time
from collections.abc import Iterable, Iterator

from keras_par.agent import wire
from keras_par.agent.states import State
from keras_par.base import host_memory
from keras_par.base.addresses import lost_in_gloo
from keras_par.base.version import difference, installed
from keras_par.launch.engines import Plan
from keras_par.launch.job import Job
from keras_par.launch.members import Member, Members
from keras_par.launch.next_world import Watch
from keras_par.launch.switchboard import Line, Switchboard

CLOCK_SECONDS = 2.0  # that hosts' clocks may differ by
REFUSAL_SECONDS = 10.0  # from a host's refusal, for the agents of others to come
BEATS_A_SECOND = 1000.0  # of all ranks, which else tell their states each second
LONGEST_BEAT, BEATS_IN_A_HANG = 15.0, 4.0  # seconds; how often a rank is heard before it is said to hang

DEAD_SECONDS = 6.0  # of silence, when ranks are being ended, whose agents speak each second: the host is gone
DOUBT_SECONDS = 7.0  # from a beat that has not come, until ssh is asked
START_SECONDS = 15.0  # for agents to start, until ssh is asked if their hosts are there


class Reception:
    """Where the agents of an attempt arrive and are heard.

    Args:
        plan: how it is started.
        job: that it is of.
        members: gets those that have arrived.
    """

    def __init__(self, plan: Plan, job: Job, members: Members):
        self._plan, self._members = plan, members
        self._job, self._folder, self._console = job, job.folder, job.console
        self.switchboard = Switchboard(plan.is_one_host)
        self._exported = plan.exported
        self._beat = beat_seconds(len(plan.places), job.hang_after)
        self._installed = installed()
        self._clocks: set[str] = set()  # hosts whose clocks are off
        self.refusal: tuple[int, str] | None = None  # a rank, and why its host's ranks and this one's are no job
        self._refused = -math.inf  # when

    def hear(self, seconds: float) -> Iterator[tuple[Line, wire.Message | None]]:
        """What agents say next, within so many seconds, each with its line, but output, which is shown.

        The first of a line is its hello, and the last is None, once its agent is gone.
        """
        if not self._console.is_full:
            yield from self._all_but_output(self.switchboard.release())
        yield from self._all_but_output(self.switchboard.hear(seconds))

    def welcome(self, line: Line, hello: wire.Message) -> bool:
        """Makes an agent's rank a member and tells it what it runs; False if it cannot be one."""
        rank, host = hello["hello"], hello["host"]
        complaint = self._fault_of(host, hello)
        if complaint is not None and self.refusal is None:
            self.refusal, self._refused = (rank, complaint), time.monotonic()
        if self.refusal is not None:
            line.close()
            return False
        line.rank = rank
        member = self._members.add(rank, Member(line, host, State(rank), beat=self._beat, session=hello["session"]))
        ahead = seconds_ahead(hello["time"] - time.time(), time.monotonic() - line.began)
        if abs(ahead) > CLOCK_SECONDS:
            member.ahead = ahead
            self._note_clock(host, ahead)
        line.send(
            {
                "environment": self._environment(rank),
                "folder": None if self._folder.path is None else str(self._folder.path),
                **{name: getattr(self._job, name) for name in ("merge_stderr", "forward", "verbose")},
                "attempt": self._folder.attempt,
                "beat": self._beat,
            }
        )
        return True

    @property
    def turns_away(self) -> bool:
        """True for a while after a refusal, in which the agents that the engine has started besides may come."""
        return time.monotonic() < self._refused + REFUSAL_SECONDS

    def _fault_of(self, host: str, hello: wire.Message) -> str | None:
        """Why a host cannot take part, one sentence; None if it can."""
        is_over_gloo = self._plan.engine == "gloo" and not self._plan.is_one_host
        lost = lost_in_gloo(host, hello["own_address"]) if is_over_gloo else None
        return difference(host, hello["installed"], self._installed) or lost

    def _environment(self, rank: int) -> dict[str, str]:
        device = self._plan.places[rank].device
        found = self._exported | self._plan.environment | {host_memory.ATTEMPT: str(self._folder.attempt)}
        return found if device is None else found | {"DEVICE_ID": device}

    def _all_but_output(
        self, said: Iterable[tuple[Line, wire.Message | None]]
    ) -> Iterator[tuple[Line, wire.Message | None]]:
        for line, message in said:
            if line.rank is None:
                if message is not None and "hello" in message:
                    yield line, message
            elif message is not None and "output" in message:
                self._show(line, line.rank, message)
            else:
                yield line, message

    def _show(self, line: Line, rank: int, message: wire.Message) -> None:
        """Shows a rank's output, or lets its agent wait until there is room for it."""
        if "bar" in message:
            self._console.bar(rank, message["output"], message["text"].rstrip(), message["bar"] == "done")
        elif self._console.is_full:
            self.switchboard.hold(line, message)
        else:
            self._console.output(rank, message["output"], message["text"])

    def _note_clock(self, host: str, ahead: float) -> None:
        """Says once that a host's clock is off, which times in its logs are by."""
        if host not in self._clocks:
            self._clocks.add(host)
            how = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of host {host} is {abs(ahead):.0f} s {how} this host's; times in its logs are its own"
            self._console.say(text)
            self._folder.event("warning", text)


class Silence:
    """The agents that are heard of no more.

    Args:
        plan: of the attempt.
        members: those that have started.
        watch: of the hosts, None where the job keeps its ranks.
    """

    def __init__(self, plan: Plan, members: Members, watch: Watch | None):
        self._plan, self._members, self._watch = plan, members, watch
        self._began = self._looked = time.monotonic()

    def look(self, ordered: float | None) -> Iterator[tuple[int, Member]]:
        """The members whose agents must be gone; those that are held count only once all are told to end.

        Args:
            ordered: when that was, None if they were not.
        """
        before, self._looked = self._looked, time.monotonic()
        was_asleep = self._looked - before > DEAD_SECONDS / 2  # by Ctrl-Z: who spoke meanwhile is not known
        latest = self._looked - wire.SILENCE_SECONDS  # that those who are gone have spoken
        if ordered is not None:
            latest = self._looked - DEAD_SECONDS if self._looked - ordered > DEAD_SECONDS else -math.inf
        for rank, member in list(self._members.running.items()):
            if was_asleep or (ordered is None and member.channel.is_held):
                member.heard = self._looked
            elif member.heard < latest or (self._watch is not None and self._is_host_lost(rank, member, self._watch)):
                yield rank, member

    def lost_at_start(self) -> tuple[str, ...]:
        """Hosts that have gone before their agents have started, where a job can do without them."""
        if self._watch is None or time.monotonic() - self._began < START_SECONDS:
            return ()
        missing = {place.host for place in self._plan.places if place.rank not in self._members.of_rank}
        return tuple(host for host in missing if self._watch.is_lost(host))

    def _is_host_lost(self, rank: int, member: Member, watch: Watch) -> bool:
        is_silent = self._looked - member.heard > member.beat + DOUBT_SECONDS
        return is_silent and watch.is_lost(self._plan.places[rank].host)


def beat_seconds(num_ranks: int, hang_after: float) -> float:
    """How often each rank tells its state, so that hangs are noticed and the launcher is not kept busy."""
    return max(1.0, min(num_ranks / BEATS_A_SECOND, hang_after / BEATS_IN_A_HANG, LONGEST_BEAT))


def seconds_ahead(least: float, waited: float) -> float:
    """By how much a clock is ahead at least, if it says so by a message that was under way for up to `waited` seconds.

    Args:
        least: the seconds if the message took no time.
        waited: seconds since the message cannot have been sent yet; hellos of thousands of agents wait for each other.
    """
    return least if least > 0 else min(0.0, least + waited)
