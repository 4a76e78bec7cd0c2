"""Reads from the environment how this process was started, before any communication library is loaded."""

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Launch:
    """How many processes were started together, and what may connect them."""

    size: int
    engine: Literal["solo", "mpi", "gloo"]


def detect() -> Launch:
    """The launch this process belongs to: horovodrun's, mpirun's, or none.

    `horovodrun --gloo` sets HOROVOD_SIZE and a rendezvous address; `mpirun` and `horovodrun --mpi` set what Open
    MPI (OMPI_COMM_WORLD_SIZE) or MPICH and Intel MPI (PMI_SIZE) set for every process.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        return started(int(os.environ.get("HOROVOD_SIZE", "1")), "gloo")
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if variable in os.environ:
            return started(int(os.environ[variable]), "mpi")
    return Launch(1, "solo")


def started(size: int, engine: Literal["mpi", "gloo"]) -> Launch:
    return Launch(size, engine if size > 1 else "solo")
