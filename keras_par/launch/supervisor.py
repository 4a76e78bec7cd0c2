"""Starts a job's ranks once, watches them through their agents, and ends all of them when one fails or hangs."""

import queue
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from keras_par.agent import wire
from keras_par.agent.installed import difference, installed
from keras_par.agent.leftovers import remove_session
from keras_par.agent.states import Exit, State, state_of
from keras_par.launch import verdict
from keras_par.launch.console import Console
from keras_par.launch.culprit import first_failure
from keras_par.launch.ending import Ending
from keras_par.launch.engines import Plan
from keras_par.launch.hang_watch import HangWatch
from keras_par.launch.members import Member, Members
from keras_par.launch.run_folder import RunFolder

TICK_SECONDS = 0.2
GRACE_SECONDS = 6.0  # from a failure, for the others to hear of it and end by themselves
ENDING_SECONDS = 60.0  # the same, after the user has asked for the end: some rank may be saving
DEAF_SECONDS = 1.0  # the same, where no rank has come to kp.init() and so none can hear
END_SECONDS = 3.0  # from one step of ending ranks to the next harder one
HANG_SECONDS = 120.0  # without progress that are a hang, unless the user says otherwise
HANG_STATUS = 124  # as timeout(1) has it
VANISHED_STATUS = REFUSED_STATUS = 1
SILENCE_SECONDS = 60.0  # of an agent, which else speaks each second: its host is gone
CLOCK_SECONDS = 2.0  # that hosts' clocks may differ by
DEAD_SECONDS = 6.0  # the same, when ranks are being ended
DOORKEEPERS = 4  # a stranger who connects and says nothing keeps one of them
RESTART_VARIABLE = "KERAS_PAR_RESTART_COUNT"


@dataclass(frozen=True)
class Settings:
    """What the user wants of a run.

    Args:
        merge_stderr: True if a rank's two streams become one.
        forward: True if the ranks' output is shown.
        verbose: True if all of it is shown.
        hang_after: seconds without progress that are a hang.
        on_hang: "report" or "abort".
    """

    merge_stderr: bool
    forward: bool
    verbose: bool
    hang_after: float
    on_hang: str


def shows_everything(environ: Mapping[str, str]) -> bool:
    """True if the user has asked TensorFlow for all that it says."""
    return environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"


class Supervisor:
    """One attempt of a job.

    Args:
        plan: how it is started.
        settings: what the user wants.
        folder: of the run.
        console: where things are shown.
        interrupts: the signals that the user has sent, appended to as they come.
    """

    def __init__(self, plan: Plan, settings: Settings, folder: RunFolder, console: Console, interrupts: list[int]):
        self._plan, self._settings, self._folder, self._console = plan, settings, folder, console
        self._interrupts, self._num_seen = interrupts, 0
        self._messages: queue.Queue[tuple[wire.Channel | int, wire.Message | None]] = queue.Queue()
        self._members = Members()
        self._hang_watch = HangWatch(self._members, settings.hang_after, folder, console)
        self._ending: Ending | None = None
        self._deadline: float | None = None  # when ranks that are left are ended, the harder way the next time
        self._is_terminating = self._has_hung = self._has_lost_engine = False
        self._stopped = self._checkpoint = ""  # where all ranks stopped for the user; the newest complete checkpoint
        self._refusal: str | None = None  # why this host's and another's ranks are no job
        self._clocks: set[str] = set()  # hosts whose clocks are off
        self._installed = installed()
        self._session: str | None = None  # the engine's folder, which one that is killed leaves
        self._looked = time.monotonic()

    def run(self) -> int:
        """The exit status of the job, once all ranks and the engine that started them are gone."""
        door = wire.Door(self._plan.is_one_host)
        for _ in range(DOORKEEPERS):
            threading.Thread(target=door.admit, args=[self._admit], daemon=True).start()
        self._engine = self._plan.start(door.invitation)
        try:
            while not self._is_over():
                self._react()
                self._look_around()
            self._engine.wait(0 if self._num_seen > 1 else END_SECONDS)
        finally:
            self._kill_engine()
            door.close()
        return self._conclude(self._engine.close())

    def _admit(self, channel: wire.Channel) -> None:
        threading.Thread(target=self._listen, args=[channel], daemon=True).start()

    def _listen(self, channel: wire.Channel) -> None:
        hello = channel.receive()
        if hello is None:
            return
        hello["ahead"] = hello["time"] - time.time()
        self._messages.put((channel, hello))
        message: wire.Message | None = hello
        while message is not None:
            message = channel.receive()
            if message is not None and "bar" in message:
                self._console.bar(hello["hello"], message["output"], message["text"].rstrip(), message["bar"] == "done")
            elif message is not None and "output" in message:
                self._console.output(hello["hello"], message["output"], message["text"])
            else:
                self._messages.put((hello["hello"], message))

    def _react(self) -> None:
        """Handles the messages that come within TICK_SECONDS."""
        deadline = time.monotonic() + TICK_SECONDS
        while (rest := deadline - time.monotonic()) > 0:
            try:
                source, message = self._messages.get(timeout=rest)
            except queue.Empty:
                return
            if isinstance(source, wire.Channel):
                assert message is not None
                self._welcome(source, message)
            else:
                self._hear(source, message)
            if self._is_over():
                return

    def _welcome(self, channel: wire.Channel, hello: wire.Message) -> None:
        rank, host = hello["hello"], hello["host"]
        self._session = hello["session"] if self._plan.is_one_host else None
        if (differs := difference(host, hello["installed"], self._installed)) is not None:
            self._refusal = self._refusal or differs
            channel.close()
            return self._end_ranks("kill")
        member = self._members.of_rank[rank] = Member(channel, host, State(rank))
        if abs(hello["ahead"]) > CLOCK_SECONDS:
            member.ahead = hello["ahead"]
            self._note_clock(host, member.ahead)
        place = self._plan.places[rank]
        environment = self._plan.exported | self._plan.environment | {RESTART_VARIABLE: str(self._folder.attempt)}
        environment |= {} if place.device is None else {"DEVICE_ID": place.device}
        channel.send(
            {
                "environment": environment,
                "folder": None if self._folder.path is None else str(self._folder.path),
                "forward": self._settings.forward,
                "merge_stderr": self._settings.merge_stderr,
                "verbose": self._settings.verbose,
                "attempt": self._folder.attempt,
            }
        )
        if self._is_terminating:
            channel.send({"terminate": True})
        if self._is_complete:
            self._describe()

    def _note_clock(self, host: str, ahead: float) -> None:
        """Says once that a host's clock is off, which times in its logs are by."""
        if host not in self._clocks:
            self._clocks.add(host)
            how = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of host {host} is {abs(ahead):.0f} s {how} this host's; times in its logs are its own"
            self._console.say(text)
            self._folder.event("warning", text)

    def _hear(self, rank: int, message: wire.Message | None) -> None:
        member = self._members.of_rank[rank]
        member.heard = time.monotonic()
        if message is None:
            self._note_vanished(rank, member)
        elif "state" in message:
            member.state = state_of(message["state"])
        elif "exit" in message:
            self._note_end(Exit(**message["exit"]).by_clock_ahead(member.ahead))
        elif "stacks" in message:
            self._hang_watch.note_stacks(rank, message["stacks"])
        elif "paused" in message and self._ending is not None:
            self._ending.note_pause(rank, message["paused"])
        elif "warning" in message:
            self._console.say(f"rank {rank}: {message['warning']}")
            self._folder.event("warning", message["warning"], rank)
        elif "resume" in message:
            self._folder.event("resume", message["resume"], rank)
        elif "stopped" in message:
            self._stopped = message["stopped"]
        elif "checkpoint" in message:
            self._checkpoint = message["checkpoint"]

    def _note_vanished(self, rank: int, member: Member) -> None:
        if member.end is None:
            self._note_end(Exit(rank, member.host, VANISHED_STATUS, time.time(), has_vanished=True))

    def _note_end(self, end: Exit) -> None:
        self._members.of_rank[end.rank].end = end
        if end.is_failure and self._deadline is None:
            can_hear = any(member.state.has_joined for member in self._members.of_rank.values())
            since_failure = end.time - (end.failed or end.time)
            grace = max(DEAF_SECONDS, GRACE_SECONDS - since_failure) if can_hear else DEAF_SECONDS
            self._deadline = time.monotonic() + (ENDING_SECONDS if self._ending else grace)

    def _look_around(self) -> None:
        """Does what is due: what the user asked for, a look for hangs, the end of ranks that are left."""
        if len(self._interrupts) > self._num_seen:
            self._interrupt()
        if self._ending is not None:
            self._ending.decide()
        self._look_for_silence()
        is_hang = self._is_complete and self._deadline is None and self._hang_watch.look(self._ends_at_hang)
        if is_hang and self._ends_at_hang:
            self._has_hung = self._ending is None
            self._deadline = time.monotonic()
        if self._engine.poll() is not None and self._deadline is None:
            self._has_lost_engine = bool(self._members.running)
            self._deadline = time.monotonic() + END_SECONDS
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end_ranks("kill" if self._is_terminating else "terminate")

    def _look_for_silence(self) -> None:
        before, self._looked = self._looked, time.monotonic()
        was_asleep = self._looked - before > DEAD_SECONDS / 2  # by Ctrl-Z: who spoke meanwhile is not known
        limit = DEAD_SECONDS if self._is_terminating else SILENCE_SECONDS
        for rank, member in self._members.running.items():
            if was_asleep:
                member.heard = self._looked
            elif self._looked - member.heard > limit:
                self._note_vanished(rank, member)

    def _end_ranks(self, how: str) -> None:
        self._is_terminating = True
        self._members.order(how)
        self._deadline = time.monotonic() + END_SECONDS

    def _interrupt(self) -> None:
        """The first time, lets all ranks stop after the same step; the second time, kills them."""
        is_first, self._num_seen = self._num_seen == 0, len(self._interrupts)
        if not is_first or self._is_terminating:
            return self._end_ranks("kill")
        self._console.say("stopping all ranks after the step under way; once more kills them at once")
        self._folder.event("interrupt", f"the user sent {signal.Signals(self._interrupts[0]).name}")
        if self._is_complete:
            self._ending = Ending(self._members)
        else:
            self._end_ranks("terminate")

    @property
    def _ends_at_hang(self) -> bool:
        """True if a hang ends the job: the user said so, or has asked for the end and ranks have not come to it.

        Ranks that have come to it may be saving, however long that takes.
        """
        return self._settings.on_hang == "abort" if self._ending is None else not self._stopped

    @property
    def _is_complete(self) -> bool:
        """True once all ranks have started."""
        return len(self._members.of_rank) == len(self._plan.places)

    def _is_over(self) -> bool:
        if self._members.running:
            return False
        return self._is_complete or self._engine.poll() is not None or self._is_terminating

    def _kill_engine(self) -> None:
        if self._engine.poll() is None:
            self._engine.kill()
            remove_session(self._session)

    def _describe(self) -> None:
        hosts = {str(rank): member.host for rank, member in sorted(self._members.of_rank.items())}
        self._folder.describe(hosts=hosts)
        self._folder.event("start", f"{len(hosts)} rank(s) started on {len(set(hosts.values()))} host(s)")

    def _conclude(self, engine_output: str) -> int:
        if self._refusal is not None:
            self._folder.event("crash", self._refusal)
            self._console.panel("the job did not start", [self._refusal])
            return REFUSED_STATUS
        ended, num_ranks = self._members.ended, len(self._plan.places)
        first = first_failure(list(ended.values()))
        if self._num_seen:
            if first is not None and not first.was_told and not first.is_interrupt:
                self._tell_failure(first)
            elif first is not None:
                self._console.say(verdict.interrupted(self._interrupts[0], self._stopped, self._checkpoint))
            return 128 + self._interrupts[0] if first or len(ended) < num_ranks else 0
        if self._has_hung:
            return HANG_STATUS
        is_engines_fault = self._has_lost_engine and (first is None or first.was_told)
        if len(ended) < num_ranks or is_engines_fault:
            return self._tell_engine_failure(len(ended), engine_output)
        if first is not None:
            self._tell_failure(first)
            return first.shell_status
        return 0

    def _tell_failure(self, first: Exit) -> None:
        text = verdict.lines(first, self._members.ended)
        stacks = {first.rank: first.stack} if first.stack else {}
        self._folder.event("crash", " ".join(text), first.rank, stacks=stacks)
        self._console.panel(verdict.title(first, self._members.ended), text, stacks)

    def _tell_engine_failure(self, num_started: int, output: str) -> int:
        status, program = self._engine.poll() or 1, self._engine.name
        text = verdict.engine_ended(num_started, len(self._plan.places), program, status, output)
        self._folder.event("crash", " ".join(text))
        self._console.panel(f"{program} has ended" if self._has_lost_engine else "the job did not start", text)
        return status if status > 0 else 128 - status
