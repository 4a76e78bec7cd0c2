"""The variables by which launchers tell a process which rank it is."""

import os
from typing import NamedTuple


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
    """This process's "rank", "size", "local_rank" or "local_size", as the first launcher says that has set it."""
    variables = [getattr(launcher, name) for launcher in LAUNCHERS]
    return next((int(os.environ[each]) for each in variables if each in os.environ), default)


def told() -> str | None:
    """The variable that tells this process which rank it is, None if it is none; srun's tell a shell the same."""
    names = (launcher.rank for launcher in LAUNCHERS if launcher is not MPICH)
    return next((name for name in names if name in os.environ), None)
