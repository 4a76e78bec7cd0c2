"""What is installed for training here, found without importing TensorFlow into this process."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from keras_par.base.backend import keras_backend
from keras_par.base.version import horovod_folder, version_of
from keras_par.cluster import environment

LOAD_SECONDS = 120  # loading TensorFlow takes 5 seconds from a local disk, and a minute from a slow shared one
DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "numpy": ("numpy",),
    "horovod": ("horovod",),
    "keras-par": ("keras-par",),
}
COMMANDS = ("mpirun", "ssh")
ENGINES = ("mpi", "gloo")  # the faster one first
WITHOUT_HOROVOD = "--without-horovod"  # what `keras_par.job.load_libraries` takes


@dataclass(frozen=True)
class Installed:
    """Versions, commands and the Keras backend, as far as they are known without loading anything."""

    versions: dict[str, str | None]
    backend: str
    backend_from: str  # "KERAS_BACKEND", the path of a keras.json, or "default"
    horovod_built_for: str | None  # version of TensorFlow
    commands: dict[str, str | None]
    mpi: str | None  # what mpirun says it belongs to, such as "Open MPI 4.1.8"

    @property
    def has_open_mpi(self) -> bool:
        """Whether mpirun is Open MPI's, and takes its options."""
        return self.mpi is not None and self.mpi.startswith("Open MPI")


@dataclass(frozen=True)
class Loaded:
    """What a process that loaded TensorFlow and Horovod found; `error` says in a few words what did not load.

    `engines` are Horovod's, none of which is there where it was left out, since TensorFlow is to connect the ranks.
    """

    engines: dict[str, bool]
    gpus: int = 0
    tensorflow_loads: bool = True
    error: str | None = None
    with_horovod: bool = True


def find() -> Installed:
    """What the environment of this Python holds."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions |= {name: version_of(*DISTRIBUTIONS[name]) for name in DISTRIBUTIONS}
    backend, backend_from = keras_backend()
    commands = {name: environment.find(name) for name in COMMANDS}
    mpi = mpi_version(commands["mpirun"])
    return Installed(versions, backend, backend_from, horovod_built_for(), commands, mpi)


def horovod_built_for() -> str | None:
    """The version of TensorFlow that the installed Horovod was compiled against, as its build noted it."""
    folder = horovod_folder()
    if folder is None:
        return None
    try:
        return json.loads((folder / "metadata.json").read_text()).get("tensorflow")
    except (OSError, ValueError):
        return None


def job_environment(mpirun: str | None) -> dict[str, str]:
    """The variables of a process that loads Horovod: this environment's commands and MPI, one thread, quiet logs."""
    variables = {
        **os.environ,
        "PATH": environment.search_path(),
        "KERAS_BACKEND": "tensorflow",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return variables | environment.mpi_variables(mpirun)


def mpi_version(mpirun: str | None) -> str | None:
    """What MPI `mpirun` belongs to; None if there is no mpirun or it does not start."""
    if mpirun is None:
        return None
    try:
        first = (environment.version_of_mpirun(mpirun).strip().splitlines() or ["unknown"])[0]
    except (OSError, subprocess.SubprocessError):
        return None
    return first.removeprefix("mpirun (").replace("Open MPI)", "Open MPI")


def load(mpirun: str | None, seconds: float = LOAD_SECONDS, with_horovod: bool = True) -> Loaded:
    """Loads TensorFlow, and Horovod unless it is left out, in a process of its own, which is killed after `seconds`."""
    command = [sys.executable, "-m", "keras_par.job.load_libraries", *([] if with_horovod else [WITHOUT_HOROVOD])]
    variables = job_environment(mpirun)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            ended = subprocess.run(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=seconds
            )
            ending = describe_end(ended.returncode)
        except subprocess.TimeoutExpired:
            ending = f"it did not end within {seconds:g} s"
        out.seek(0), err.seek(0)
        return understand(out.read(), err.read(), ending)


def understand(output: str, errors: str, ending: str) -> Loaded:
    """What its output means, when it ended as `ending` says."""
    facts: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            facts |= json.loads(line)
    if "mpi" in facts:
        engines = {name: facts[name] for name in ("mpi", "gloo", "nccl")}
        return Loaded(engines, facts["gpus"], with_horovod=facts.get("horovod", True))
    last = (errors.strip().splitlines() or [""])[-1]
    error = facts.get("error") or (last if "Error" in last else ending)
    return Loaded({}, facts.get("gpus", 0), "tensorflow" in facts, error)


def describe_end(status: int) -> str:
    """How a process with this status ended, for people."""
    return f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"
