"""Starts a job's ranks once, watches them through their agents, and ends all of them when one fails or hangs."""

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from keras_par.agent import wire
from keras_par.agent.installed import difference, installed
from keras_par.agent.leftovers import remove_session
from keras_par.agent.states import Exit, State, state_of
from keras_par.launch import verdict
from keras_par.launch.console import Console
from keras_par.launch.culprit import first_failure
from keras_par.launch.ending import Ending
from keras_par.launch.engines import Plan, exported
from keras_par.launch.hang_watch import HangWatch
from keras_par.launch.members import Member, Members
from keras_par.launch.run_folder import RunFolder
from keras_par.launch.switchboard import Line, Switchboard

TICK_SECONDS = 0.2
PAUSE_SECONDS = 5e-6  # for each rank, to hear several at once
GRACE_SECONDS = 6.0  # from a failure, for the others to hear of it and end by themselves
ENDING_SECONDS = 60.0  # the same, after the user has asked for the end: some rank may be saving
NAMED_SECONDS = 3.0  # from a failure, until it is named though other ranks are still there
DEAF_SECONDS = 1.0  # the same, where no rank has come to kp.init() and so none can hear
END_SECONDS = 3.0  # from one step of ending ranks to the next harder one
HANG_STATUS = 124  # as timeout(1) has it
VANISHED_STATUS = REFUSED_STATUS = 1
SILENCE_SECONDS = 60.0  # of an agent, which else speaks each second: its host is gone
CLOCK_SECONDS = 2.0  # that hosts' clocks may differ by
DEAD_SECONDS = 6.0  # the same, when ranks are being ended
BEATS_A_SECOND = 1000.0  # of all ranks, which else tell their states each second
LONGEST_BEAT, BEATS_IN_A_HANG = 15.0, 4.0  # seconds; how often a rank is heard before it is said to hang
LOOKS = 10_000.0  # at ranks, a second
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
        self._switchboard = Switchboard(plan.is_one_host)
        self._beat = beat_seconds(len(plan.places), settings.hang_after)
        self._exported = {} if plan.is_one_host else exported(os.environ)
        self._members = Members()
        self._hang_watch = HangWatch(self._members, settings.hang_after, folder, console)
        self._ending: Ending | None = None
        self._deadline: float | None = None  # when ranks that are left are ended, the harder way the next time
        self._failed: float | None = None  # when a failure became known that is not named yet
        self._is_terminating = self._has_hung = self._has_lost_engine = False
        self._stopped = self._checkpoint = ""  # where all ranks stopped for the user; the newest complete checkpoint
        self._refusal: str | None = None  # why this host's and another's ranks are no job
        self._clocks: set[str] = set()  # hosts whose clocks are off
        self._installed = installed()
        self._session: str | None = None  # the engine's folder, which one that is killed leaves
        self._looked = self._ordered = time.monotonic()  # at silent ranks; when ranks were last told to end

    def run(self) -> int:
        """The exit status of the job, once all ranks and the engine that started them are gone."""
        with tempfile.TemporaryFile() as engine_log:
            self._engine = self._start(self._switchboard.invitation, engine_log)
            try:
                while not self._is_over():
                    self._react()
                    self._look_around()
                self._wait_for_engine()
            finally:
                self._kill_engine()
                self._switchboard.close()
            engine_log.seek(0)
            return self._conclude(engine_log.read().decode(errors="replace"))

    def _start(self, invitation: str, log: BinaryIO) -> subprocess.Popen:
        return subprocess.Popen(
            self._plan.command,
            env={**os.environ, **self._plan.environment, wire.VARIABLE: invitation},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _react(self) -> None:
        """Handles the messages that come within TICK_SECONDS."""
        deadline = time.monotonic() + TICK_SECONDS
        if self._switchboard.held and not self._console.is_full:
            for line, message in self._switchboard.release():
                self._take(line, message)
        while (rest := deadline - time.monotonic()) > 0 and not self._is_over():
            for line, message in self._switchboard.hear(rest):
                self._take(line, message)
            time.sleep(PAUSE_SECONDS * len(self._members.running))

    def _take(self, line: Line, message: wire.Message | None) -> None:
        if line.rank is None:
            if message is not None and "hello" in message:
                line.rank = message["hello"]
                self._welcome(line, message | {"ahead": message["time"] - time.time()})
        elif message is not None and "output" in message:
            self._show(line, message)
        else:
            self._hear(line.rank, message)

    def _show(self, line: Line, message: wire.Message) -> None:
        """Shows a rank's output, or lets its agent wait until there is room for it."""
        assert line.rank is not None
        if "bar" in message:
            self._console.bar(line.rank, message["output"], message["text"].rstrip(), message["bar"] == "done")
        elif self._console.is_full:
            self._switchboard.hold(line, message)
        else:
            self._console.output(line.rank, message["output"], message["text"])

    def _welcome(self, channel: Line, hello: wire.Message) -> None:
        rank, host = hello["hello"], hello["host"]
        self._session = hello["session"] if self._plan.is_one_host else None
        if (differs := difference(host, hello["installed"], self._installed)) is not None:
            self._refusal = self._refusal or differs
            channel.close()
            return self._end_ranks("kill")
        member = self._members.add(rank, Member(channel, host, State(rank), beat=self._beat))
        if abs(hello["ahead"]) > CLOCK_SECONDS:
            member.ahead = hello["ahead"]
            self._note_clock(host, member.ahead)
        place = self._plan.places[rank]
        environment = self._exported | self._plan.environment | {RESTART_VARIABLE: str(self._folder.attempt)}
        environment |= {} if place.device is None else {"DEVICE_ID": place.device}
        channel.send(
            {
                "environment": environment,
                "folder": None if self._folder.path is None else str(self._folder.path),
                "forward": self._settings.forward,
                "merge_stderr": self._settings.merge_stderr,
                "verbose": self._settings.verbose,
                "attempt": self._folder.attempt,
                "beat": self._beat,
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
            member.state, member.told = state_of(rank, message["state"]), member.heard
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
        self._members.note_end(end)
        if end.is_failure and not end.was_told and not self._num_seen and self._deadline is None:
            self._failed = time.monotonic()
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
        if self._failed is not None and time.monotonic() - self._failed > NAMED_SECONDS:
            self._failed = None
            self._name_failure()
        if time.monotonic() - self._looked >= len(self._members.running) / LOOKS:
            self._look_at_ranks()
        if self._engine.poll() is not None and self._deadline is None:
            self._has_lost_engine = bool(self._members.running)
            self._deadline = time.monotonic() + END_SECONDS
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end_ranks("kill" if self._is_terminating else "terminate")

    def _look_at_ranks(self) -> None:
        """Looks at each rank: which is silent, and which hangs."""
        self._look_for_silence()
        is_hang = self._is_complete and self._deadline is None and self._hang_watch.look(self._ends_at_hang)
        if is_hang and self._ends_at_hang:
            self._has_hung = self._ending is None
            self._deadline = time.monotonic()

    def _look_for_silence(self) -> None:
        before, self._looked = self._looked, time.monotonic()
        was_asleep = self._looked - before > DEAD_SECONDS / 2  # by Ctrl-Z: who spoke meanwhile is not known
        limit = DEAD_SECONDS if self._is_terminating else SILENCE_SECONDS
        held = self._switchboard.held
        for rank, member in list(self._members.running.items()):
            if was_asleep or member.channel in held:
                member.heard = self._looked
            elif self._looked - max(member.heard, self._ordered) > limit:
                self._note_vanished(rank, member)

    def _end_ranks(self, how: str) -> None:
        if not self._is_terminating:
            self._is_terminating, self._ordered = True, time.monotonic()
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

    def _wait_for_engine(self) -> None:
        try:
            self._engine.wait(0 if self._num_seen > 1 else END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill_engine()

    def _kill_engine(self) -> None:
        if self._engine.poll() is None:
            os.killpg(self._engine.pid, signal.SIGKILL)
            self._engine.wait()
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

    def _name_failure(self) -> None:
        first = first_failure(list(self._members.ended.values()))
        if first is not None and self._members.running:
            left = len(self._members.running)
            rest = f"{left} other rank{' has' if left == 1 else 's have'} not ended yet"
            self._console.say(f"rank {first.rank} {first.how()}; {rest}, and will be ended")

    def _tell_failure(self, first: Exit) -> None:
        text = verdict.lines(first, self._members.ended)
        stacks = {first.rank: first.stack} if first.stack else {}
        self._folder.event("crash", " ".join(text), first.rank, stacks=stacks)
        self._console.panel(verdict.title(first, self._members.ended), text, stacks)

    def _tell_engine_failure(self, num_started: int, output: str) -> int:
        status = self._engine.returncode or 1
        program = Path(self._plan.command[0]).name
        text = verdict.engine_ended(num_started, len(self._plan.places), program, status, output)
        self._folder.event("crash", " ".join(text))
        self._console.panel(f"{program} has ended" if self._has_lost_engine else "the job did not start", text)
        return status if status > 0 else 128 - status


def beat_seconds(num_ranks: int, hang_after: float) -> float:
    """How often each rank tells its state, so that hangs are noticed and the launcher is not kept busy."""
    return max(1.0, min(num_ranks / BEATS_A_SECOND, hang_after / BEATS_IN_A_HANG, LONGEST_BEAT))
