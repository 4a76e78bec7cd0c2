"""Starts a fixed number of ranks once, sends them work, and shows every rank's stack when they hang."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.branches import MEASURED
from tests.patience import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[2]
RENEWED_AFTER = 450  # tasks, of each of which TensorFlow keeps graphs and memory
TEST = "PYTEST_CURRENT_TEST"  # pytest's
HANGS = "did not return on all"  # how an error begins
ENGINES = {"ranks": "Horovod over MPI", "tensorflow": "TensorFlow over gRPC"}  # in sentences, by kind of pool
# Of programs that use what `tests/lean` takes away.
WITH_EXTRAS = {"PYTHONPATH": str(REPOSITORY)}
# Of programs that find no Horovod.
WITHOUT_HOROVOD = {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "tests/without"), str(REPOSITORY)))}


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
    """The variables a launched rank needs here: root may run mpirun, one thread a rank, no GPU, quiet TensorFlow.

    With `KERAS_PAR_TEST_GPU` ranks see that GPU, which then multiplies float32 in full precision, not as TF32.
    Horovod looks for work every 5 ms: every 0.2 ms, two ranks that pause take a core from the tests beside them. Unless
    `WITH_EXTRAS` are among the extra ones, a rank starts sooner by what `tests/lean` takes away.
    """
    gpu = os.environ.get("KERAS_PAR_TEST_GPU")
    return {
        **os.environ,
        "PATH": f"{scripts()}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "tests/lean"), str(REPOSITORY))),
        "OPAL_PREFIX": sys.prefix,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMP_NUM_THREADS": "1",
        "HOROVOD_CYCLE_TIME": "5",
        "CUDA_VISIBLE_DEVICES": gpu or "",
        **({"NVIDIA_TF32_OVERRIDE": "0"} if gpu else {}),
        "PYTHONWARNINGS": "error::UserWarning:keras_par",
        **extra,
    }


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def mpirun(size: int) -> list[str]:
    """The mpirun command for `size` ranks on this host, however few cores it has."""
    command = [str(scripts() / "mpirun"), "-np", str(size), "--oversubscribe", "--bind-to", "none"]
    return [*command, "--mca", "mpi_yield_when_idle", "1"]


class RankPool:
    """`size` ranks of one job, or, with `kind="plain"`, one process of Keras as it is; a new job after some tasks.

    MPI connects "ranks", and TensorFlow "tensorflow".
    """

    has_grappler = False  # TensorFlow's optimizer of graphs, in tasks that begin from now on

    def __init__(
        self,
        size: int,
        kind: str = "ranks",
        renewed_after: int = RENEWED_AFTER,
        variables: Mapping[str, str] = MappingProxyType({}),
    ):
        self.size, self.kind, self._renewed_after, self._variables = size, kind, renewed_after, variables
        self.engine = ENGINES.get(kind)
        self.num_tasks = 0
        self._begun: Begun | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="kp-test-"))
        self._log = self._folder / "log"
        self._start()

    def _start(self) -> None:
        self._num_tasks_of_job = 0
        key = secrets.token_hex(16)
        address = str(self._folder / f"{time.monotonic_ns()}.socket")
        launcher = [] if self.kind == "plain" else mpirun(self.size)
        variables = {"KERAS_PAR_TEST_KEY": key}
        variables |= {MEASURED: ""} if self.kind == "plain" else {}
        if self.kind == "tensorflow":
            variables |= {"KERAS_PAR_ENGINE": "tensorflow", "MASTER_PORT": str(free_port())}
        with Listener(address, "AF_UNIX", authkey=key.encode()) as listener, self._log.open("ab") as log:
            self._job = subprocess.Popen(
                [
                    *launcher,
                    sys.executable,
                    "-m",
                    "tests.ranks.worker",
                    "plain" if self.kind == "plain" else "ranks",
                    address,
                ],
                env=environment(**variables, **WITH_EXTRAS, **self._variables),
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
        listener._listener._socket.settimeout(PATIENCE)  # type: ignore[attr-defined]
        for _ in range(self.size):
            try:
                connection = listener.accept()
            except (TimeoutError, OSError) as error:
                self.close()
                raise RuntimeError(f"{self.size} rank(s) did not start: {error}\n{self.log()}") from error
            members.append((*connection.recv(), connection))
        return members

    def run(self, task, seconds: float = PATIENCE, **arguments) -> list[Any]:
        """What `task(**arguments)` returns on each rank, in rank order.

        Raises:
            RankError: it raised on some rank, or did not return within `seconds`.
        """
        return self.begin(task, seconds, **arguments).results()

    def attempt(self, task, seconds: float = PATIENCE, **arguments) -> list[Any]:
        """As `run`, but a rank's exception is returned as a `Failure` in its place."""
        return self.begin(task, seconds, **arguments).outcomes()

    def begin(self, task, seconds: float = PATIENCE, **arguments) -> "Begun":
        """As `run`, but does not wait for the ranks, so that another pool can work at the same time."""
        if self._begun is not None:  # by a test that failed before it asked for the results
            with contextlib.suppress(RankError):
                self._begun.outcomes()
        self.num_tasks += 1
        self._num_tasks_of_job += 1
        self._signal(signal.SIGCONT)
        self._begun = Begun(self, task, time.monotonic() + seconds, seconds)
        for connection in self._connections:
            connection.send((task.__module__, task.__name__, arguments, os.environ.get(TEST, ""), self.has_grappler))
        return self._begun

    def _collect(self, begun: "Begun") -> list[Any]:
        self._begun = None
        results = []
        for connection in self._connections:
            if not connection.poll(max(0.0, begun.deadline - time.monotonic())):
                self._give_up(begun)
            try:
                status, *content = connection.recv()
            except EOFError:
                self._give_up(begun)
            results.append(content[0] if status == "ok" else Failure(*content))
        assert len(results) == self.size
        self._signal(signal.SIGSTOP)  # idle ranks poll for work, which would slow down the other pools
        return results

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _give_up(self, begun: "Begun") -> None:
        mark = self._log.stat().st_size
        self._signal(signal.SIGUSR1)
        time.sleep(1)
        stacks = self._log.read_bytes()[mark:].decode(errors="replace")
        before = self._log.read_bytes()[max(0, mark - 3000) : mark].decode(errors="replace")
        self.restart()
        raise RankError(
            f"{begun.task.__name__} {HANGS} {self.size} ranks within {begun.seconds} s, or a rank died. "
            f"Last output:\n{before}\nStacks of the ranks:\n{stacks}"
        )

    def restart(self) -> None:
        """Starts a new job in place of one that a failure has ended."""
        self._kill()
        self._start()

    def renew(self) -> None:
        """Starts a new job in place of one that has run many tasks."""
        if self._num_tasks_of_job >= self._renewed_after and self._begun is None:
            self._end()
            self._start()

    def log(self) -> str:
        """The last output of all ranks."""
        return self._log.read_bytes()[-6000:].decode(errors="replace")

    def close(self) -> None:
        """Ends the ranks for good."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        """Ends the job; ranks that do not end by themselves within 20 s are killed."""
        if hasattr(self, "_pids"):
            self._signal(signal.SIGCONT)
        for connection in getattr(self, "_connections", []):
            with contextlib.suppress(OSError):
                connection.send(None)
        try:
            self._job.wait(20)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        """Kills the ranks, and mpirun only if it does not end then: it removes the memory that they shared."""
        if hasattr(self, "_pids"):
            self._signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(5)
        self._job.kill()
        self._job.wait()


class Begun:
    """A task that a pool's ranks work on.

    Args:
        pool: the ranks.
        task: the function they have been sent.
        deadline: when they must have returned, of `time.monotonic()`.
        seconds: that they were given.
    """

    def __init__(self, pool: RankPool, task, deadline: float, seconds: float):
        self._pool, self.task, self.deadline, self.seconds = pool, task, deadline, seconds
        self._outcomes: list[Any] | None = None

    def results(self) -> list[Any]:
        """What the task returned on each rank, in rank order; raises RankError as `RankPool.run` does."""
        outcomes = self.outcomes()
        failures = [(rank, result) for rank, result in enumerate(outcomes) if isinstance(result, Failure)]
        if failures:
            size = self._pool.size
            self._pool.restart()  # a rank that failed alone has left its job
            raise RankError("\n".join(f"rank {rank} of {size}: {failure.traceback}" for rank, failure in failures))
        return outcomes

    def outcomes(self) -> list[Any]:
        """As `results`, with a `Failure` in the place of a rank that raised."""
        if self._outcomes is None:
            self._outcomes = self._pool._collect(self)
        return self._outcomes


def together(*begun: Begun) -> list[list[Any]]:
    """The results of tasks that several pools work on at the same time, which fills the cores one of them leaves idle.

    Raises:
        RankError: as `RankPool.run` does.
    """
    return [each.results() for each in begun]
