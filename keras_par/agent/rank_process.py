"""The user's program of one rank: starts it, reads its page, asks it for stacks, and ends it with all its children."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from keras_par.agent.cleanup import is_tracker, started
from keras_par.agent.states import State
from keras_par.base.heartbeat_page import (
    CALLS,
    GRAPH_PHASES,
    MAGIC,
    NEVER,
    PHASES,
    STACK_SIGNAL,
    VARIABLE,
    Page,
    image_of,
)

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TRACKER_SECONDS = 2.0  # for Python's trackers to unlink what is left

libc = ctypes.CDLL(None, use_errno=True)


class RankProcess:
    """A running program, the leader of a session of its own.

    It dies with this process, which adopts what the program leaves behind.

    Args:
        command: the program and its arguments.
        environment: its variables.
        merge_stderr: True writes both streams to one.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], merge_stderr: bool):
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        page_file = os.memfd_create("kp-page", 0)
        os.truncate(page_file, ctypes.sizeof(Page))
        self.page = Page.from_buffer(mmap.mmap(page_file, ctypes.sizeof(Page)))
        self.page.magic, self.page.stop_before = MAGIC, NEVER
        self._stacks = os.memfd_create("kp-stacks", 0)
        self.notes, notes = os.pipe()
        files = (page_file, self._stacks, notes)
        self._process = subprocess.Popen(
            command,
            env={**environment, VARIABLE: ",".join(map(str, files))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge_stderr else subprocess.PIPE,
            bufsize=0,
            pass_fds=files,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        os.close(page_file)
        os.close(notes)
        self.pid = self._process.pid
        self.stdout, self.stderr = self._process.stdout, self._process.stderr
        for each in (self.notes, self.stdout, self.stderr):
            if each is not None:  # whoever waits for one of them does not hear of the others
                os.set_blocking(each if isinstance(each, int) else each.fileno(), False)
        self._marks: tuple[int, ...] = ()
        self._stacks_read = 0
        self.num_taken = self._num_taken = 0  # bytes of its output: that were read, and had been at the last look
        self.rss, self._cpu = 0, 0.0
        self._progressed = self.began = time.monotonic()

    def poll(self) -> int | None:
        """Its exit status, minus the signal that ended it, None while it runs."""
        return self._process.poll()

    def send_signal(self, number: int) -> None:
        """Sends the program and its process group a signal, as a terminal does.

        The process that has called kp.init() gets it in its main thread. A signal to a process goes to any thread, such
        as one that just begins, and a main thread that sleeps or waits would not hear of it: Python acts there alone.
        """
        if self.poll() is not None:
            return
        for pid in self._group():
            with contextlib.suppress(ProcessLookupError):
                if pid == self.page.pid:
                    signal_main_thread(pid, number)
                else:
                    os.kill(pid, number)

    def request_stacks(self) -> None:
        """Lets the process that has called kp.init() write its stacks, a moment later.

        The signal would end another program that this process has become.
        """
        if self.page.pid and self.poll() is None and catches(self.page.pid, STACK_SIGNAL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.page.pid, STACK_SIGNAL)

    def new_stacks(self) -> str:
        """What was written about stacks since this was last asked."""
        begin, self._stacks_read = self._stacks_read, os.fstat(self._stacks).st_size
        return os.pread(self._stacks, self._stacks_read - begin, begin).decode(errors="replace")

    def kill(self) -> None:
        """Kills the program and whatever it has started, wherever that has gone, and what these start meanwhile.

        Python's trackers of semaphores and shared memory come last: they clean up and end when all others are gone.
        What compiles for later jobs stays.
        """
        while children := started():
            victims = [child for child in children if not is_tracker(child)]
            if not victims:
                _, victims = psutil.wait_procs(children, timeout=TRACKER_SECONDS)
            for child in victims:
                with contextlib.suppress(psutil.Error):
                    child.kill()
            self._process.wait()
            others = [child for child in victims if child.pid != self.pid]
            _, alive = psutil.wait_procs(others, timeout=1)
            if len(alive) == len(others) > 0:
                return  # they cannot be killed: other users' processes, or in the kernel

    def _group(self) -> list[int]:
        """The processes of the program's group, itself first."""
        others = []
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                if child.pid != self.pid and os.getpgid(child.pid) == self.pid:
                    others.append(child.pid)
        return [self.pid, *others]

    def state(self, rank: int) -> State:
        """Where the program is now."""
        page, now = self.page, time.monotonic()
        status, rss, cpu = process_status(self.pid)
        self.rss, self._cpu = rss or self.rss, cpu or self._cpu
        in_step = PHASES[page.phase] == "step"
        names = page.collective or (page.graph_collectives if in_step else b"")
        waits = tuple(names.decode(errors="replace").split())
        is_writing = self._is_writing()
        self._note_progress(now, is_writing)
        return State(
            rank=rank,
            has_joined=bool(page.pid),
            phase=GRAPH_PHASES[page.graph_phase] if in_step else "reduce" if waits else PHASES[page.phase],
            phase_seconds=now - page.phase_since if page.pid else now - self.began,
            call=CALLS[page.call],
            collectives=waits,
            epoch=page.epoch,
            step=page.step,
            steps=page.steps,
            quiet=now - self._progressed,
            is_stopped=status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
            has_closed=self.poll() is None and has_no_writer(self.notes),
            is_writing=is_writing,
            python_seconds=now - page.sampled if page.sampled else 0.0,
            has_failed=page.failed > 0 and page.failed_at == page.executions,
            has_ended=page.ended > 0,
            is_replaced=self._is_replaced(),
            threads=page.threads.decode(errors="replace"),
        )

    def measures(self) -> dict[str, Any]:
        """What a log says of its work so far, and of its memory and processor time at the last look."""
        page = self.page
        return {
            "loss": page.loss if page.loss == page.loss else None,
            "seconds": seconds_by_phase(page, time.monotonic()),
            "step_times": {str(number): count for number, count in enumerate(page.step_times) if count},
            "rss": self.rss,
            "cpu": self._cpu,
            "memory_wait": waited_for_memory(),
        }

    def _is_writing(self) -> bool:
        """True if it has written more than was read of it, so that it waits, or soon will."""
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        return any(content_of(pipe.fileno()) > fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 2 for pipe in pipes)

    def _is_replaced(self) -> bool:
        """True if the process that has called kp.init() has become another program since."""
        image = image_of(self.page.pid) if self.page.image else b""
        return image not in (b"", self.page.image)

    def _note_progress(self, now: float, is_writing: bool) -> None:
        """Output that is taken is progress of a program that waits for that."""
        page = self.page
        marks = (page.pid, page.marks, page.graph_marks)
        if marks != self._marks or (is_writing and self.num_taken != self._num_taken):
            self._progressed = now
        self._marks, self._num_taken = marks, self.num_taken


def content_of(pipe: int) -> int:
    """The bytes in a pipe that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def has_no_writer(pipe: int) -> bool:
    """True if all who could write into a pipe have closed it."""
    looks = select.poll()
    looks.register(pipe, 0)
    return bool(looks.poll(0))


def die_with_parent() -> None:
    """In the program's process, before it is the program: asking for stacks never ends it.

    That would be the signal's default, until `kp.init()` and after the interpreter's end.
    """
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)


def signal_main_thread(pid: int, number: int) -> None:
    """Sends a signal to the main thread of a process; to any thread where the C library cannot (glibc before 2.30).

    Raises:
        ProcessLookupError: it has ended.
    """
    if not hasattr(libc, "tgkill"):
        os.kill(pid, number)
    elif libc.tgkill(pid, pid, number) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def seconds_by_phase(page: Page, now: float) -> dict[str, float]:
    """Seconds in each phase so far; those in steps are divided as the samples are."""
    spent = dict(zip(PHASES, page.seconds, strict=True))
    if page.pid:
        spent[PHASES[page.phase]] += now - page.phase_since
    in_steps, samples = spent.pop("step"), list(page.samples)
    shares = dict(zip(GRAPH_PHASES, samples if any(samples) else (0, 1, 0), strict=True))
    result = {"script": spent["starting"] + spent["script"], "callback": spent["callback"]}
    for phase, count in shares.items():
        result[phase] = in_steps * count / sum(shares.values())
    result["data"] += spent["data"]
    result["reduce"] += spent["collective"]
    return {phase: round(seconds, 4) for phase, seconds in result.items()}


def process_status(pid: int) -> tuple[str, int, float]:
    """A process's state, its memory in bytes, its processor time in seconds; of one that is gone nothing."""
    try:
        with (process := psutil.Process(pid)).oneshot():
            times = process.cpu_times()
            return process.status(), process.memory_info().rss, times.user + times.system
    except psutil.Error:
        return psutil.STATUS_DEAD, 0, 0.0


def waited_for_memory() -> float:
    """Seconds since this host's start in which some process waited for memory; 0 if the kernel does not count them.

    Linux's pressure stall information: docs.kernel.org/accounting/psi.html.
    """
    try:
        _, total = Path("/proc/pressure/memory").read_text().splitlines()[0].rsplit("total=")
        return int(total) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def catches(pid: int, number: int) -> bool:
    """True if a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")]
    return any(mask >> (number - 1) & 1 for mask in masks)


def num_kills_for_memory() -> int:
    """How often the kernel of this host has killed a process because memory ran out, its control groups included."""
    try:
        found = [line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")]
    except OSError:
        return 0
    return int(found[0].split()[1]) if found else 0
