"""Lets agents in, tells each what it runs, and passes on what they say."""

import math
import queue
import threading
import time

from keras_par.agent import wire
from keras_par.agent.installed import difference, installed
from keras_par.agent.states import State
from keras_par.base.addresses import lost_in_gloo
from keras_par.launch.console import Console
from keras_par.launch.engines import Plan
from keras_par.launch.members import Member, Members
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.settings import Settings

CLOCK_SECONDS = 2.0  # that hosts' clocks may differ by
DOORKEEPERS = 4  # a stranger who connects and says nothing keeps one of them
REFUSAL_SECONDS = 10.0  # from a host's refusal, for the agents of others to come
RESTART_VARIABLE = "KERAS_PAR_RESTART_COUNT"


class Reception:
    """Where the agents of an attempt arrive.

    Args:
        plan: how it is started.
        settings: what the user wants.
        folder: of the run.
        console: where output is shown.
        members: gets those that have arrived.
    """

    def __init__(self, plan: Plan, settings: Settings, folder: RunFolder, console: Console, members: Members):
        self._plan, self._settings, self._folder, self._console = plan, settings, folder, console
        self._members = members
        self._installed = installed()
        self._clocks: set[str] = set()  # hosts whose clocks are off
        self.messages: queue.Queue[tuple[wire.Channel | int, wire.Message | None]] = queue.Queue()
        self.refusal: tuple[int, str] | None = None  # a rank, and why its host's ranks and this one's are no job
        self._refused = -math.inf  # when
        self.session: str | None = None  # the engine's folder, which one that is killed leaves

    def open(self, door: wire.Door) -> None:
        """Lets agents in from now on."""
        for _ in range(DOORKEEPERS):
            threading.Thread(target=door.admit, args=[self._admit], daemon=True).start()

    def welcome(self, channel: wire.Channel, hello: wire.Message) -> bool:
        """Makes an agent's rank a member and tells it what it runs; False if it cannot be one."""
        rank, host = hello["hello"], hello["host"]
        self.session = hello["session"] if self._plan.is_one_host else None
        if self.refusal is None and (fault := self._fault_of(host, hello)) is not None:
            self._refuse(rank, fault)
        if self.refusal is not None:
            channel.close()
            return False
        member = self._members.of_rank[rank] = Member(channel, host, State(rank))
        if abs(hello["ahead"]) > CLOCK_SECONDS:
            member.ahead = hello["ahead"]
            self._note_clock(host, member.ahead)
        channel.send(
            {
                "environment": self._environment(rank),
                "folder": None if self._folder.path is None else str(self._folder.path),
                "forward": self._settings.forward,
                "merge_stderr": self._settings.merge_stderr,
                "verbose": self._settings.verbose,
                "attempt": self._folder.attempt,
            }
        )
        return True

    def _refuse(self, rank: int, fault: str) -> None:
        self.refusal, self._refused = (rank, fault), time.monotonic()

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
        found = self._plan.exported | self._plan.environment | {RESTART_VARIABLE: str(self._folder.attempt)}
        return found if device is None else found | {"DEVICE_ID": device}

    def _admit(self, channel: wire.Channel) -> None:
        threading.Thread(target=self._listen, args=[channel], daemon=True).start()

    def _listen(self, channel: wire.Channel) -> None:
        hello = channel.receive()
        if hello is None:
            return
        hello["ahead"] = hello["time"] - time.time()
        self.messages.put((channel, hello))
        message: wire.Message | None = hello
        while message is not None:
            message = channel.receive()
            if message is not None and "bar" in message:
                self._console.bar(hello["hello"], message["output"], message["text"].rstrip(), message["bar"] == "done")
            elif message is not None and "output" in message:
                self._console.output(hello["hello"], message["output"], message["text"])
            else:
                self.messages.put((hello["hello"], message))

    def _note_clock(self, host: str, ahead: float) -> None:
        """Says once that a host's clock is off, which times in its logs are by."""
        if host not in self._clocks:
            self._clocks.add(host)
            how = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of host {host} is {abs(ahead):.0f} s {how} this host's; times in its logs are its own"
            self._console.say(text)
            self._folder.event("warning", text)
