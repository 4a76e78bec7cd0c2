"""Starts jobs by `keras-par run` as a user does, and finds whatever a job has left behind."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.patience import PATIENCE, comes_to_be
from tests.ranks.pool import REPOSITORY, environment

MARK = "KERAS_PAR_TEST_JOB"  # a variable that every process of a job inherits
PROGRAMS = Path(__file__).parent / "programs"
GONE_SECONDS = 3.0  # for processes that were killed to be reaped

_running: set["Job"] = set()  # whose end nobody has waited for yet


@dataclass(frozen=True)
class Ended:
    """How a job ended: exit status, what it printed, and how long it took."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    end: float  # seconds since 1970

    @property
    def panels(self) -> list[str]:
        """The launcher's panels: lines between a rule with a title and one without."""
        return re.findall(r"^([^\n]+ ─{3,}$.*?)^─+$", self.stderr, re.DOTALL | re.MULTILINE)

    @property
    def last_panel(self) -> str:
        """The text of the last panel, which must be the last thing printed."""
        assert re.search(r"^─+$\s*\Z", self.stderr, re.MULTILINE), self.stderr
        return self.panels[-1]


class Job:
    """A running `keras-par run`, or a script that starts ranks itself, started in the repository.

    Args:
        arguments: of `keras-par run`, or of Python.
        stdout: a file or a descriptor; by default it is kept.
        before: called in the launcher's process before it becomes the launcher.
        within: a command that becomes the launcher's command, which follows it.
        launcher: what Python runs with these arguments.
        variables: environment variables besides the usual, None for those that shall not be there.
    """

    def __init__(
        self,
        *arguments: str,
        stdout=subprocess.PIPE,
        before=None,
        within=(),
        launcher=("-m", "keras_par.launch"),
        **variables: str | None,
    ):
        self.mark = uuid.uuid4().hex
        self._began = time.monotonic()
        wanted = {name: value for name, value in environment(**variables).items() if value is not None}
        self.process = subprocess.Popen(
            [*within, sys.executable, *launcher, *map(str, arguments)],
            cwd=REPOSITORY,
            env=wanted | {MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
        )
        _running.add(self)

    def processes(self) -> list[psutil.Process]:
        """All processes of the job that run, the launcher among them."""
        return [process for process in psutil.process_iter() if is_marked(process, self.mark)]

    def wait_for(self, path: Path) -> None:
        """Returns once a file is there."""
        self.wait_until(path.exists, str(path))

    def wait_until(self, condition: Callable[[], object], what: str = "that") -> None:
        """Returns once something is so, while the job runs."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"the job did not come to {what}"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def wait_until_ready(self, folder: Path, num_ranks: int = 2) -> None:
        """Returns once each rank has written that it is ready."""
        for rank in range(num_ranks):
            self.wait_for(folder / f"ready.{rank}")

    def signal(self, number: int = signal.SIGINT) -> None:
        """Sends the launcher a signal."""
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE, leaves_nothing: bool = True) -> Ended:
        """How it ends; fails if a process of it is left."""
        try:
            stdout, stderr = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            stdout, stderr = self.process.communicate()
            raise AssertionError(f"the job did not end within {seconds} s:\n{stdout}\n{stderr}") from None
        finally:
            _running.discard(self)
        ended = Ended(self.process.returncode, stdout or "", stderr, time.monotonic() - self._began, time.time())
        if leaves_nothing:
            self.require_gone()
        return ended

    def require_gone(self, seconds: float = GONE_SECONDS) -> None:
        """Fails, and kills them, if processes of the job are still there after so many seconds."""
        comes_to_be(lambda: not self.processes(), seconds)
        shown = [(process.pid, command_of(process)) for process in self.processes()]
        self.kill()
        assert not shown, f"the job left processes behind: {shown}"

    def kill(self) -> None:
        """Kills every process of the job."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def kill_all() -> None:
    """Kills the jobs that a test has left running, as one that has failed may."""
    while _running:
        job = _running.pop()
        job.kill()
        job.process.communicate()


def command_of(process: psutil.Process) -> list[str]:
    """The command line of a process, empty if it has ended meanwhile."""
    try:
        return process.cmdline() or [""]
    except psutil.Error:
        return [""]


def is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def run(*arguments: str, seconds: float = PATIENCE, **variables: str | None) -> Ended:
    """Starts a job and waits for its end."""
    return Job(*arguments, **variables).wait(seconds)


def run_all(jobs: Mapping[str, Sequence], **variables: str | None) -> dict[str, Ended]:
    """How jobs end, given their arguments by name, that run at the same time, since most of it they wait."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return dict(zip(jobs, threads.map(lambda arguments: run(*arguments, **variables), jobs.values()), strict=True))


def program(name: str) -> str:
    """The path of one of the tests' programs."""
    return str(PROGRAMS / f"{name}.py")


def events(folder: Path) -> list[dict]:
    """What a run's folder says has happened."""
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def of_kind(folder: Path, kind: str) -> list[dict]:
    return [event for event in events(folder) if event["event"] == kind]


def rank_of_this_process() -> int:
    """The rank of a program that loads no communication library."""
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("HOROVOD_RANK", "0")))
