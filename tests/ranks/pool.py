"""Starts a fixed number of ranks once, sends them work, and shows every rank's stack when they hang."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 120
TASK_SECONDS = 150


@dataclass(frozen=True)
class Failure:
    """An exception that a task raised on a rank."""

    kind: str
    message: str
    traceback: str


class RankError(AssertionError):
    """A task raised on some rank; shows each rank's traceback."""


def scripts() -> Path:
    """The folder of this environment's commands."""
    return Path(sys.executable).parent


def environment(**extra: str) -> dict[str, str]:
    """The variables a launched rank needs here: root may run mpirun, one thread a rank, no GPU, quiet TensorFlow."""
    return {
        **os.environ,
        "PATH": f"{scripts()}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "OPAL_PREFIX": sys.prefix,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "error::UserWarning:keras_par",
        **extra,
    }


def mpirun(size: int) -> list[str]:
    """The mpirun command for `size` ranks on this host, however few cores it has."""
    command = [str(scripts() / "mpirun"), "-np", str(size), "--oversubscribe", "--bind-to", "none"]
    return [*command, "--mca", "mpi_yield_when_idle", "1"]


class RankPool:
    """`size` ranks of one job, or, with `kind="plain"`, one process of Keras as it is."""

    def __init__(self, size: int, kind: str = "ranks"):
        self.size, self.kind = size, kind
        self.num_tasks = 0
        self._folder = Path(tempfile.mkdtemp(prefix="kp-test-"))
        self._log = self._folder / "log"
        self._start()

    def _start(self) -> None:
        key = secrets.token_hex(16)
        address = str(self._folder / f"{time.monotonic_ns()}.socket")
        launcher = mpirun(self.size) if self.kind == "ranks" else []
        with Listener(address, "AF_UNIX", authkey=key.encode()) as listener, self._log.open("ab") as log:
            self._job = subprocess.Popen(
                [*launcher, sys.executable, "-m", "tests.ranks.worker", self.kind, address],
                env=environment(KERAS_PAR_TEST_KEY=key),
                cwd=REPOSITORY,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            members = self._accept(listener)
        members.sort(key=lambda member: member[0])
        assert [member[0] for member in members] == list(range(self.size)), members
        assert all(member[1] == self.size for member in members), members
        self._pids = [member[2] for member in members]
        self._connections: list[Connection] = [member[3] for member in members]

    def _accept(self, listener: Listener) -> list[tuple]:
        members = []
        listener._listener._socket.settimeout(START_SECONDS)  # type: ignore[attr-defined]
        for _ in range(self.size):
            try:
                connection = listener.accept()
            except (TimeoutError, OSError) as error:
                self.close()
                raise RuntimeError(f"{self.size} rank(s) did not start: {error}\n{self.log()}") from error
            members.append((*connection.recv(), connection))
        return members

    def run(self, task, seconds: float = TASK_SECONDS, **arguments) -> list[Any]:
        """What `task(**arguments)` returns on each rank, in rank order.

        Raises:
            RankError: it raised on some rank, or did not return within `seconds`.
        """
        results = self.attempt(task, seconds, **arguments)
        failures = [(rank, result) for rank, result in enumerate(results) if isinstance(result, Failure)]
        if failures:
            raise RankError("\n".join(f"rank {rank} of {self.size}: {failure.traceback}" for rank, failure in failures))
        return results

    def attempt(self, task, seconds: float = TASK_SECONDS, **arguments) -> list[Any]:
        """As `run`, but a rank's exception is returned as a `Failure` in its place."""
        self.num_tasks += 1
        self._signal(signal.SIGCONT)
        deadline = time.monotonic() + seconds
        for connection in self._connections:
            connection.send((task.__module__, task.__name__, arguments))
        results = []
        for connection in self._connections:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                self._give_up(task, seconds)
            try:
                status, *content = connection.recv()
            except EOFError:
                self._give_up(task, seconds)
            results.append(content[0] if status == "ok" else Failure(*content))
        assert len(results) == self.size
        self._signal(signal.SIGSTOP)  # idle ranks poll for work, which would slow down the other pools
        return results

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _give_up(self, task, seconds: float) -> None:
        mark = self._log.stat().st_size
        self._signal(signal.SIGUSR1)
        time.sleep(1)
        stacks = self._log.read_bytes()[mark:].decode(errors="replace")
        before = self._log.read_bytes()[max(0, mark - 3000) : mark].decode(errors="replace")
        self.restart()
        raise RankError(
            f"{task.__name__} did not return on all {self.size} ranks within {seconds} s, or a rank died. "
            f"Last output:\n{before}\nStacks of the ranks:\n{stacks}"
        )

    def restart(self) -> None:
        """Starts a new job in place of one that a failure has ended."""
        self._kill()
        self._start()

    def log(self) -> str:
        """The last output of all ranks."""
        return self._log.read_bytes()[-6000:].decode(errors="replace")

    def close(self) -> None:
        """Ends the ranks; ranks that do not end by themselves within 20 s are killed."""
        if hasattr(self, "_pids"):
            self._signal(signal.SIGCONT)
        for connection in getattr(self, "_connections", []):
            with contextlib.suppress(OSError):
                connection.send(None)
        try:
            self._job.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kill(self) -> None:
        for pid in (self._job.pid, *getattr(self, "_pids", [])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._job.wait()
