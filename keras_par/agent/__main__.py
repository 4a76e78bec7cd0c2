"""Runs one rank's program below what has started it, passes its output on, reports on it, leaves nothing behind."""

import argparse
import dataclasses
import itertools
import math
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_par.agent import cleanup, notes, wire
from keras_par.agent.rank_log import RankLog
from keras_par.agent.rank_process import RankProcess, num_kills_for_memory
from keras_par.agent.reachability import ANSWER_SECONDS, Knocks
from keras_par.agent.states import FAULTS, Beats, Exit, State, brief
from keras_par.agent.terminal_filter import Lines, is_bar, settled, whole_lines, without_chatter
from keras_par.agent.traceback_text import last_words, readable_stacks, summarize
from keras_par.base import host_memory
from keras_par.base.addresses import own_address
from keras_par.base.rank_variables import number
from keras_par.base.version import installed
from keras_par.cluster.binding import bind

LOOK_SECONDS = 1.0  # from one look at the rank to the next
PATIENCE_SECONDS = 0.5  # for the rest of a line
STACK_SECONDS = 0.5  # a program has to write its stacks
TERMINATE_SECONDS = 2.0  # from SIGTERM to SIGKILL
DRAIN_SECONDS = 1.0  # children of a program that has ended may hold its output open
SETTLE_SECONDS = 0.02  # until a step that was beginning sees that it shall pause
TAIL_LINES = 400
STACK_LASTS_SECONDS = 5.0  # from an error until its stack is written
BAR_SECONDS = 0.2  # from one picture of a progress bar to the next


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a program for the launcher that the environment names; where it names none, becomes the program."""
    parser = argparse.ArgumentParser(prog="python -m keras_par.agent", description=__doc__)
    parser.add_argument("--bind", action="store_true", help="bind to this rank's share of the host's cores")
    parser.add_argument("command", nargs="+", metavar="PROGRAM")
    arguments = parser.parse_args(argv)
    if arguments.bind:
        bind(number("local_rank"), number("local_size", 1))
    channel = wire.connect()
    if channel is None:
        os.execvp(arguments.command[0], arguments.command)
    rank = number("rank")
    session = os.environ.get(cleanup.SESSION)
    about = {"host": socket.gethostname(), "pid": os.getpid(), "installed": installed(), "time": time.time()}
    channel.send({"hello": rank, "session": session, "own_address": own_address(), **about})
    job = channel.receive()
    if job is not None:
        Agent(rank, arguments.command, job, channel).run()
    return 0  # what the program's status was, the launcher knows; another would make mpirun end the others itself


class Agent:
    """One rank's program, from its start to its end, in one thread that waits for whatever happens next.

    Args:
        rank: of the program.
        command: the program and its arguments.
        job: what the launcher says about the job: "environment", "folder" of the logs or None, "forward", whether
            output goes to the launcher, "merge_stderr", "verbose", whether that is all of it, "attempt", "beat": from
            one state that it wants to the next, in seconds.
        channel: to the launcher.
    """

    def __init__(self, rank: int, command: Sequence[str], job: wire.Message, channel: wire.Channel):
        self._rank, self._command, self._job, self._channel = rank, command, job, channel
        folder = job["folder"]
        self._log: RankLog | None = None
        if folder:
            self._log = RankLog(Path(folder) / f"rank.{rank}", job["attempt"], self._warn, job["beat"])
        self._forward = job["forward"]
        self._reactions: dict[int, Callable[[], object]] = {}  # to what can be read
        self._outputs: set[int] = set()  # those that are the program's
        self._is_draining = False
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._tails: dict[str, deque[str]] = {name: deque(maxlen=TAIL_LINES) for name in ("stdout", "stderr")}
        self._failure: wire.Message = {}
        self._kept_by: str | None = None  # what the program waited for when it was told to end
        self._is_replaced = False  # it was another program then
        self._held = ""  # what stderr got after an error that another rank shows, too
        self._was_told = self._is_alone = False  # the launcher has ended the program; is gone
        self._is_dismissed = self._ends_engine = self._keeps_memory = False
        self._state, self._beats = State(rank), Beats(job["beat"])
        self._kills_before = num_kills_for_memory()

    def run(self) -> None:
        """Starts the program; returns when it and all it has started are gone, and the launcher lets the agent go."""
        wake_up, _writer = sockets_of_signals()
        self._reactions[self._channel.fileno()] = self._obey
        try:
            self._process = RankProcess(
                self._command, {**os.environ, **self._job["environment"]}, self._job["merge_stderr"]
            )
        except OSError as error:
            complaint = f"'{self._command[0]}' cannot be started ({error.strerror})"
            end = Exit(self._rank, socket.gethostname(), 126, time.time(), last_words=complaint)
            self._channel.send({"exit": vars(end)})
        else:
            self._see_through(wake_up)
        while not self._is_alone and not self._is_dismissed:
            self._wait(LOOK_SECONDS)
            self._look_for_launcher()
        if not self._keeps_memory:
            host_memory.remove(os.environ | self._job["environment"])
        if self._ends_engine:
            cleanup.end_engine(os.environ)

    def _see_through(self, wake_up: socket.socket) -> None:
        """Watches the program until its end, which is told, and ends what it leaves behind."""
        self._watch(self._process.stdout, "stdout", self._output)
        if self._process.stderr:
            self._watch(self._process.stderr, "stderr", self._output)
        self._read_notes = self._watch(self._process.notes, "notes", self._note)
        self._reactions[wake_up.fileno()] = lambda: wake_up.recv(4096)
        self._obey()  # what has come behind the job
        self._look()
        while self._process.poll() is None:
            self._wait(None)
        self._ended = time.time()
        self._drain()
        self._process.kill()
        cleanup.remove_segment(os.environ)
        self._report_end()
        self._timers.clear()

    def _watch(self, file, name: str, react: Callable[[str, str, bytes], None]) -> Callable[[], bool]:
        """Passes whole lines of a pipe to `react`, and parts of lines that nothing follows for a while.

        Returns:
            What reads the pipe; False if it has nothing, or is at its end.
        """
        descriptor = file if isinstance(file, int) else file.fileno()
        lines = Lines()

        def read() -> bool:
            try:
                data = os.read(descriptor, 65536)
            except BlockingIOError:  # it was read since the event came
                return False
            if not data:
                self._reactions.pop(descriptor, None)
            lines.add(data)
            react(name, lines.whole() if data else lines.rest(), data)
            if lines.has_rest and not lines.is_awaited:
                lines.is_awaited = True
                self._after(BAR_SECONDS if is_bar(lines.begun()) else PATIENCE_SECONDS, give_up)
            return bool(data)

        def give_up() -> None:
            lines.is_awaited = False
            if is_bar(begun := lines.begun()):
                self._draw(name, begun)
            else:
                react(name, lines.rest(), b"")

        self._reactions[descriptor] = read
        if react == self._output:
            self._outputs.add(descriptor)
        return read

    def _wait(self, seconds: float | None) -> bool:
        """Reacts to what happens next, in at most `seconds`; False if nothing did.

        It reads no more output while the launcher has much to read yet.
        """
        timer = min((when for when, _ in self._timers), default=None)
        if timer is not None:
            rest = max(0.0, timer - time.monotonic())
            seconds = rest if seconds is None else min(seconds, rest)
        reads_output = self._is_draining or not self._channel.is_behind
        poll = select.poll()
        for descriptor in self._reactions:
            if reads_output or descriptor not in self._outputs:
                poll.register(descriptor, select.POLLIN)
        if self._channel.waiting and not self._is_alone:
            poll.register(self._channel, select.POLLIN | select.POLLOUT)
        events = poll.poll(None if seconds is None else math.ceil(1000 * seconds))
        for descriptor, _ in events:
            if descriptor in self._reactions:
                self._reactions[descriptor]()
        due = [each for each in self._timers if each[0] <= time.monotonic()]
        for each in due:
            self._timers.remove(each)
            each[1]()
        return bool(events)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + seconds, action))

    def _look(self) -> None:
        self._state = self._process.state(self._rank)
        if not self._channel.is_behind and self._beats.is_due(self._state, time.monotonic()):
            self._channel.send({"state": brief(self._state)})
        self._log_progress()
        self._look_for_launcher()
        self._after(LOOK_SECONDS, self._look)

    def _log_progress(self, is_last: bool = False) -> None:
        if self._log:
            where = {name: getattr(self._state, name) for name in ("phase", "call", "epoch", "step", "steps")}
            about = {"time": time.time(), "collective": " ".join(self._state.collectives) or None}
            self._log.progress({**about, **where, **self._process.measures()}, is_last)

    def _output(self, stream: str, text: str, data: bytes) -> None:
        self._process.num_taken += len(data)
        is_kept = self._log is None or self._log.write(stream, data)
        self._tails[stream].extend(text.splitlines())
        if self._job["verbose"] or not is_kept:
            return self._send_output(stream, text, is_wanted=self._forward or not is_kept)
        if text and stream == ("stdout" if self._job["merge_stderr"] else "stderr") and self._is_told_elsewhere():
            self._held += text
            return None
        return self._send_output(stream, without_chatter(text), is_wanted=self._forward)

    def _send_output(self, stream: str, text: str, is_wanted: bool) -> None:
        """Sends lines to the launcher, those that were overwritten as they are in the end."""
        for is_overwritten, lines in itertools.groupby(whole_lines(text) if is_wanted else [], is_bar):
            if not is_overwritten:
                self._channel.send({"output": stream, "text": "\n".join([*lines, ""])})
                continue
            for shown in filter(None, map(settled, lines)):
                self._channel.send({"output": stream, "text": shown + "\n", "bar": "done"})

    def _draw(self, stream: str, begun: str) -> None:
        if self._forward and (shown := settled(begun)):
            self._channel.send({"output": stream, "text": shown, "bar": "begun"})

    def _is_told_elsewhere(self) -> bool:
        """True after an error that only follows from another rank's, or that rank 0 shows as well."""
        while self._read_notes():
            pass  # the note of an error is written before its stack
        is_common = self._failure.get("on_all_ranks", False) and self._rank > 0
        is_new = time.time() - self._failure.get("time", 0.0) < STACK_LASTS_SECONDS
        return is_new and (is_common or self._failure.get("is_consequence", False))

    def _note(self, _: str, text: str, data: bytes) -> None:
        for kind, note in filter(None, map(notes.parsed, text.splitlines())):
            if kind in notes.KEPT and self._log:
                self._log.note(notes.KEPT[kind], note)
            elif kind in ("failure", "leaving"):
                self._failure = note
            elif kind == "warning":
                self._warn(note["text"])
            elif kind in notes.TOLD:
                self._channel.send({kind: note})

    def _warn(self, text: str) -> None:
        self._channel.send({"warning": text})

    def _obey(self) -> None:
        self._channel.flush()
        is_there = self._channel.read()
        try:
            for order in self._channel.messages():
                self._carry_out(order)
        except ValueError:  # who says that is no launcher
            is_there = False
        if not is_there:
            self._part()

    def _carry_out(self, order: wire.Message) -> None:
        if "look" in order:
            self._channel.send({"state": brief(self._process.state(self._rank))})
        elif "stacks" in order:
            self._send_stacks()
        elif "knock" in order:
            self._knock(order["knock"])
        elif "pause" in order:
            self._pause(order["pause"])
        elif "stop_before" in order:
            self._process.page.stop_before = order["stop_before"]
        elif "signal" in order:
            self._process.send_signal(order["signal"])
        elif "terminate" in order:
            self._terminate()
        elif "dismiss" in order:
            self._is_dismissed = True
            self._ends_engine, self._keeps_memory = order["dismiss"]["ends_engine"], order["dismiss"]["keeps_memory"]
        elif "kill" in order:
            self._was_told = True
            self._beats.hasten(LOOK_SECONDS)
            self._process.kill()

    def _look_for_launcher(self) -> None:
        if not self._is_alone and self._channel.is_lost:
            self._part()

    def _part(self) -> None:
        """Ends the program, whose launcher is gone."""
        self._reactions.pop(self._channel.fileno(), None)
        self._is_alone = self._ends_engine = True
        self._terminate()

    def _send_stacks(self) -> None:
        self._process.request_stacks()
        self._after(STACK_SECONDS, lambda: self._channel.send({"stacks": readable_stacks(self._process.new_stacks())}))

    def _knock(self, addresses: dict[str, list]) -> None:
        knocks = Knocks(addresses)
        self._after(ANSWER_SECONDS, lambda: self._channel.send({"unanswered": knocks.unanswered()}))

    def _pause(self, why: int) -> None:
        self._process.page.pause = why
        if not why:
            return
        time.sleep(SETTLE_SECONDS)
        page = self._process.page
        self._channel.send({"paused": {"executions": page.executions, "is_in_fit": bool(page.in_fit)}})

    def _terminate(self) -> None:
        self._was_told = True
        self._beats.hasten(LOOK_SECONDS)  # who is told to end is soon taken for gone
        state = self._process.state(self._rank)
        self._is_replaced = state.is_replaced
        if not state.has_failed and not state.has_ended:
            return self._send_terminate()
        self._kept_by = state.kept_by() if state.has_ended else None
        self._process.request_stacks()  # which say what has kept it
        self._after(STACK_SECONDS, self._send_terminate)

    def _send_terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)
        self._after(TERMINATE_SECONDS, self._process.kill)

    def _drain(self) -> None:
        """Reads what is left in the pipes."""
        self._is_draining = True
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline and self._wait(0.05):
            pass

    def _report_end(self) -> None:
        words = [*self._tails["stdout"], *self._tails["stderr"]]
        error, user_line = summarize(words)
        status = self._process.poll() or 0
        if status == 0:  # it has come over the error
            self._send_output("stderr", self._held, self._forward)
        self._state = self._process.state(self._rank)
        page = self._process.page
        if self._failure.get("marks") != page.executions:
            self._failure = {}  # it went on after that
        failed = {name: self._failure[name] for name in ("call", "epoch", "step") if name in self._failure}
        self._log_progress(is_last=True)
        end = Exit(
            rank=self._rank,
            host=socket.gethostname(),
            status=status,
            time=self._ended,
            out_of_memory=status == -signal.SIGKILL and num_kills_for_memory() > self._kills_before,
            was_told=self._was_told,
            failed=self._failure["time"] if "message" in self._failure else None,
            is_consequence=self._failure.get("is_consequence", False),
            on_all_ranks=self._failure.get("on_all_ranks", False),
            error=self._failure.get("message") if status < 0 else error or self._failure.get("message"),
            user_line=self._failure.get("user_line") or (None if status < 0 else user_line),
            last_words=last_words(words),
            stack=readable_stacks(self._process.new_stacks()) if -status in FAULTS or self._kept_by else None,
            kept_by=self._kept_by,
            is_replaced=self._is_replaced,
            place=dataclasses.replace(self._state, **failed).place(),
            rss=self._process.rss,
            steps=self._state.steps,
            log=str(self._log.path("stdout" if self._job["merge_stderr"] else "stderr")) if self._log else None,
        )
        self._channel.send({"exit": vars(end)})


def sockets_of_signals() -> tuple[socket.socket, socket.socket]:
    """A socket that can be read when a child has ended, and its other end, which must be kept.

    What mpirun and other starters signal is left to the launcher.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda *_: None)
    return reader, writer


if __name__ == "__main__":
    sys.exit(main())
