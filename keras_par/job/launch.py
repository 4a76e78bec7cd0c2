"""Reads from the environment how this process was started, before any communication library is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from keras_par.base.rank_variables import GLOO, MPICH, OPEN_MPI, number_in
from keras_par.base.variables import number
from keras_par.job.starters import SHELL, Starter, address_of, place_of, port_of, started_by_srun, starter_of


@dataclass(frozen=True)
class Launch:
    """How many processes were started together, and what may connect them.

    `rank` is known beforehand only where the ranks have yet to find each other: in a shell loop, below torchrun, srun.
    """

    size: int
    engine: Literal["solo", "mpi", "gloo"]
    rank: int | None = None


@dataclass(frozen=True)
class MeetingPoint:
    """Where ranks that nobody has connected find rank 0, how many seconds they wait, and who started them."""

    address: str
    port: int
    seconds: float
    starter: Starter = SHELL

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def detect() -> Launch:
    """The launch this process belongs to: horovodrun's, mpirun's, a shell loop's, torchrun's, srun's, or none.

    They count in this order. `horovodrun --gloo` sets HOROVOD_SIZE and a rendezvous address; `mpirun` and `horovodrun
    --mpi` set what Open MPI (OMPI_COMM_WORLD_SIZE) or MPICH and Intel MPI (PMI_SIZE) set for every process; srun may
    set PMI_SIZE, too, whether or not an MPI here listens to it. In a shell loop the user sets RANK_SIZE and RANK_ID.
    torchrun sets WORLD_SIZE and RANK, srun SLURM_STEP_NUM_TASKS and SLURM_PROCID.

    Raises:
        RuntimeError: the variables describe no job.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        return started(number_in(os.environ, GLOO.size, 1) or 1, "gloo")
    if OPEN_MPI.size in os.environ:
        return started(number_in(os.environ, OPEN_MPI.size, 1) or 1, "mpi")
    if MPICH.size in os.environ and not started_by_srun(os.environ, MPICH.size, MPICH.rank):
        return started(number_in(os.environ, MPICH.size, 1) or 1, "mpi")
    return by_hand(os.environ)


def started(size: int, engine: Literal["mpi", "gloo"]) -> Launch:
    return Launch(size, engine if size > 1 else "solo")


def by_hand(environ: Mapping[str, str]) -> Launch:
    """The launch that a shell loop's, torchrun's or srun's variables describe; without them one process.

    Raises:
        RuntimeError: one of them is impossible or missing.
    """
    starter = starter_of(environ)
    if starter is None:
        return Launch(1, "solo")
    rank, size = place_of(environ, starter)
    return Launch(size, "gloo", rank) if size > 1 else Launch(1, "solo")


def meeting_point(environ: Mapping[str, str]) -> MeetingPoint:
    """Where ranks started by hand meet, by the names of torchrun; they wait HOROVOD_START_TIMEOUT seconds.

    Raises:
        RuntimeError: MASTER_PORT or HOROVOD_START_TIMEOUT is impossible.
    """
    starter = starter_of(environ) or SHELL
    seconds = number(environ, "HOROVOD_START_TIMEOUT", 1, None, "set it to the seconds that ranks wait for each other")
    return MeetingPoint(address_of(environ, starter), port_of(environ, starter), seconds or 120, starter)
