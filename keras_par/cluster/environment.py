"""The commands of this Python's environment, its MPI, and the Horovod that belongs to this package."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HOROVOD_VERSION = "0.28.1"
SECONDS = 120  # that mpirun may take to say its version, from a slow shared disk


def scripts() -> Path:
    """The folder of this environment's commands."""
    return Path(sysconfig.get_path("scripts"))


def search_path() -> str:
    """PATH with this environment's commands first."""
    return os.pathsep.join(part for part in (str(scripts()), os.environ.get("PATH")) if part)


def find(program: str) -> str | None:
    """The path of a command: this environment's, else the first on PATH, None if there is none."""
    return shutil.which(program, path=search_path())


def mpi_variables(mpirun: str | None) -> dict[str, str]:
    """What `mpirun` must be told: where its help texts and plug-ins lie, if it came as a wheel.

    Links in that path are followed, as Open MPI's daemons do: a rank that is told another path than its daemon is stuck
    in MPI_Init, where it would print a warning.
    """
    is_wheel = mpirun is not None and Path(mpirun).parent == scripts()
    return {"OPAL_PREFIX": os.path.realpath(os.environ.get("OPAL_PREFIX") or sys.prefix)} if is_wheel else {}


def version_of_mpirun(mpirun: str) -> str:
    """What `mpirun --version` prints.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, or takes too long.
    """
    variables = os.environ | {"PATH": search_path()} | mpi_variables(mpirun)
    command = [mpirun, "--version"]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
