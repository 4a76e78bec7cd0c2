"""The variables by which launchers tell a process which rank it is."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from keras_par.base import environment


class Variables(NamedTuple):
    """What one launcher calls them."""

    rank: str
    size: str
    local_rank: str
    local_size: str


GLOO = Variables("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")  # horovodrun's own
OPEN_MPI = Variables(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")))
MPICH = Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # Intel MPI's, too
SHELL = Variables("RANK_ID", "RANK_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # a shell loop's, and Ray's actors'
# Horovod's come first: a shell that SLURM has started has a PMI_RANK, too.
LAUNCHERS = (GLOO, OPEN_MPI, MPICH, SHELL)


def number(name: str, default: int = 0) -> int:
    """This process's "rank", "size", "local_rank" or "local_size", as the first launcher says that has set it.

    Raises:
        RuntimeError: it is no number.
    """
    lowest = 1 if name.endswith("size") else 0
    found = (number_in(os.environ, getattr(launcher, name), lowest) for launcher in LAUNCHERS)
    return next((each for each in found if each is not None), default)


def number_in(environ: Mapping[str, str], name: str, lowest: int) -> int | None:
    """The number in a launcher's variable, None if it is not set.

    Raises:
        RuntimeError: it is none.
    """
    return environment.number(environ, name, lowest, None, "launchers set it for each rank, so unset it")


def told() -> str | None:
    """The variable that tells this process which rank it is, None if it is none; srun's tell a shell the same."""
    names = (launcher.rank for launcher in LAUNCHERS if launcher is not MPICH)
    return next((name for name in names if name in os.environ), None)
