"""Plans how a job's agents are started, by mpirun or our own start over Gloo, and is there as long as that is."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from keras_par.agent.wire import VARIABLE
from keras_par.base.environment import one_line
from keras_par.base.version import horovod_library
from keras_par.cluster.binding import cores, share
from keras_par.cluster.environment import find, mpi_variables
from keras_par.cluster.hosts import Place
from keras_par.cluster.reach import Ssh, is_local
from keras_par.cluster.slurm import is_in_allocation

Engine = Literal["mpi", "gloo", "tensorflow"]
VARIABLE_OF_ENGINE = "KERAS_PAR_ENGINE"
# Of what starts the agents.
NAMES: dict[Engine, str] = {"mpi": "mpirun", "gloo": "the start over Gloo", "tensorflow": "the start over TensorFlow"}

# mpirun ends the others by SIGTERM when one rank's connection breaks, and by SIGKILL so many seconds later; the
# launcher, which knows more, is done long before.
KILL_TIMEOUT = 30
TERMINATE_SECONDS = 3.0  # from SIGTERM to SIGKILL
BOUND_CYCLE_TIME = "0.2"  # ms; short cycles only help ranks that have cores of their own, docs/performance.md
NOT_EXPORTED = ("PWD", "OLDPWD", "HOSTNAME", "SHLVL", "DISPLAY", "TMPDIR", "LS_COLORS", "_", "HOROVOD_RANK")
NOT_EXPORTED_PREFIXES = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC", "OMPI_", "PMI_", "PMIX_", "SLURM_")


class EngineError(RuntimeError):
    """No ranks can be started; one sentence about what is missing and what to do."""


class Started(ABC):
    """An engine at work.

    Args:
        name: what it is called in sentences.
    """

    def __init__(self, name: str):
        self.name = name

    @abstractmethod
    def poll(self) -> int | None:
        """None while it works, then its exit status, minus the signal that ended it."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it at once."""

    @abstractmethod
    def close(self) -> str:
        """Lets go of it, when it has ended; what it has said."""


class StartedProcess(Started):
    """A running program, the leader of a session of its own.

    Args:
        name: what it is called in sentences.
        command: what is run, arguments that no shell sees.
        environment: its variables.
        is_one_host: True if it starts agents on this host alone.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], is_one_host: bool):
        super().__init__(name)
        self._is_one_host = is_one_host
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it lasts as long as the program
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def poll(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Ends it; on other hosts only itself can end what it has started there."""
        if not self._is_one_host:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERMINATE_SECONDS)
        if self.poll() is None:
            started = psutil.Process(self._process.pid).children(recursive=True)
            os.killpg(self._process.pid, signal.SIGKILL)
            for each in started:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.wait()

    def close(self) -> str:
        with self._log:
            self._log.seek(0)
            return self._log.read().decode(errors="replace")


@dataclass(frozen=True)
class Plan:
    """How a job will be started.

    Args:
        engine: what connects the ranks.
        places: of the ranks, in their order.
        command: what is run, arguments that no shell sees.
        environment: what is added to this process's variables for it and for the ranks.
        warning: one sentence about what the user may not expect, or None.
    """

    engine: Engine
    places: Sequence[Place]
    command: Sequence[str]
    environment: dict[str, str]
    warning: str | None

    @functools.cached_property
    def is_one_host(self) -> bool:
        """True if all ranks run on this host."""
        return are_here(self.places)

    @property
    def exported(self) -> dict[str, str]:
        """The variables that each rank gets from here, where it does not have them from its engine."""
        return {} if self.is_one_host else exported(os.environ)

    def start(self, invitation: str) -> Started:
        """Starts an agent for each place, which goes to the launcher by the invitation."""
        variables = {**os.environ, **self.environment, VARIABLE: invitation}
        return StartedProcess(NAMES[self.engine], self.command, variables, self.is_one_host)


def choose(wanted: str | None) -> Engine:
    """The engine to use: MPI if Horovod was built with it and mpirun is there, else Gloo; TensorFlow without Horovod.

    Args:
        wanted: by the user, before KERAS_PAR_ENGINE.

    Raises:
        EngineError: the engine that is wanted is unknown, Horovod does not have it, or its launcher is missing.
    """
    wanted, library = wanted or os.environ.get(VARIABLE_OF_ENGINE) or None, horovod_library()
    if wanted is not None and wanted not in NAMES:
        raise EngineError(f"there is no engine {one_line(wanted)}: set KERAS_PAR_ENGINE to mpi, gloo or tensorflow.")
    if wanted == "tensorflow" or (wanted is None and library is None):
        return "tensorflow"
    if library is None:
        raise EngineError("Horovod is not installed: run 'keras-par install-horovod', or take '--engine tensorflow'.")
    has_mpi = contains(library, b"MPI_Init_thread")
    if wanted == "mpi" and not has_mpi:
        raise EngineError("Horovod was built without MPI: run 'keras-par install-horovod --engine mpi --rebuild'.")
    if wanted == "mpi" and find("mpirun") is None:
        raise EngineError("mpirun was not found: put it on the PATH, or take '--engine gloo'.")
    if wanted != "gloo" and has_mpi and find("mpirun"):
        return "mpi"
    return "gloo"


def plan(
    engine: Engine,
    places: Sequence[Place],
    command: Sequence[str],
    environ: Mapping[str, str],
    given: Mapping[str, str],
    ssh: Ssh,
) -> Plan:
    """How to start `command` on each place.

    Args:
        engine: what connects the ranks.
        places: of the ranks.
        command: what each rank runs.
        environ: the variables of this process.
        given: those that the user gives the ranks besides.
        ssh: how to get to other hosts.

    Raises:
        EngineError: MPI cannot pass on the name of a key.
    """
    most = max(Counter(place.host for place in places).values())
    available = cores(os.sched_getaffinity(0))
    own = share(available, 0, most)
    agent = [sys.executable, "-P", "-m", "keras_par.agent", *(["--bind"] if own else []), "--", *command]
    environment = settings(len(own) if own else 1, own is not None, {**environ, **given}) | dict(given)
    environment[VARIABLE_OF_ENGINE] = engine
    start = mpirun(places, environment, ssh) if engine == "mpi" else starter(places, ssh)
    warning = None
    if own is None:
        warning = (
            f"{most} ranks share the {len(available)} core(s) of a host, which is good for tests but slower than "
            f"{len(available)} rank(s)"
        )
    return Plan(engine, places, [*start, *agent], environment, warning)


def settings(num_threads: int, is_bound: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables the ranks get besides those they have: what the user has set stays."""
    wanted = {
        "OMP_NUM_THREADS": str(num_threads),
        "TF_NUM_INTRAOP_THREADS": str(num_threads),
        "TF_NUM_INTEROP_THREADS": str(max(2, num_threads)),  # one more for what waits
        "PYTHONUNBUFFERED": "1",
        "KERAS_BACKEND": "tensorflow",
    }
    if is_bound:
        wanted["HOROVOD_CYCLE_TIME"] = BOUND_CYCLE_TIME
    return {name: value for name, value in wanted.items() if name not in environ}


def mpirun(places: Sequence[Place], environment: dict[str, str], ssh: Ssh) -> list[str]:
    """mpirun's part of the command. Agents bind the ranks, so that it is the same with every MPI and with Gloo.

    Raises:
        EngineError: the name of the key's file has a space, at which mpirun would cut it.
    """
    program = find("mpirun") or "mpirun"
    environment |= mpi_variables(program)
    command = [program, "-np", str(len(places)), "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    command += ["--mca", "odls_base_sigkill_timeout", str(KILL_TIMEOUT)]
    command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if are_here(places):
        return [*command, "--oversubscribe"]
    if is_in_allocation(os.environ):
        environment["SLURM_OVERLAP"] = "1"  # else mpirun's srun waits for other steps of the job to end
        command += ["--oversubscribe"]  # there may be more ranks than tasks
    arguments = " ".join(ssh.arguments)
    if arguments.split() != ssh.arguments:
        raise EngineError(
            f"mpirun cannot use '{ssh.identity}', whose name has a space: give the key's file another name, or take "
            "'--engine gloo'."
        )
    command += ["--mca", "plm_rsh_args", arguments] if arguments else []
    names = [VARIABLE, *(name for name in ("PYTHONPATH", "PATH") if name in os.environ)]
    given = [argument for name in names for argument in ("-x", name)]
    return [*command, "-H", ",".join(place.host for place in places), "--map-by", "seq", *given]


def starter(places: Sequence[Place], ssh: Ssh) -> list[str]:
    """The part of the command that starts agents without mpirun."""
    hosts = ",".join(place.host for place in places)
    return [sys.executable, "-P", "-m", "keras_par.launch.gloo", "-H", hosts, *ssh.arguments, "--"]


def are_here(places: Sequence[Place]) -> bool:
    """True if all places are on this host."""
    return all(map(is_local, {place.host for place in places}))


def exported(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that ranks on other hosts get from here."""
    return {
        name: value
        for name, value in environ.items()
        if name not in NOT_EXPORTED and not name.startswith(NOT_EXPORTED_PREFIXES)
    }


def contains(path: Path, text: bytes) -> bool:
    import mmap

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(text) >= 0
