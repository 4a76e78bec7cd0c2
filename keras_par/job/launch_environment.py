"""Reads from the environment how this process was started, before any communication library is loaded."""

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from keras_par.base.environment import number, one_line
from keras_par.base.rank_variables import GLOO, MPICH, OPEN_MPI, Variables, number_in
from keras_par.base.version import horovod_library

Engine = Literal["solo", "mpi", "gloo", "tensorflow"]
ENGINE = "KERAS_PAR_ENGINE"  # the variable that chooses one
PORT = 29500  # torchrun's, too
JOBS_OF_MPI = ("OMPI_MCA_ess_base_jobid", "PMI_JOBID", "PMI_FD")  # by which mpiruns tell their jobs apart
NO_TASKS_STEP = 0xFFFFFFF0  # SLURM numbers from here on the steps that no srun has started, such as a batch script


@dataclass(frozen=True)
class Launch:
    """How many processes were started together, and what may connect them.

    `rank` is known beforehand only where the ranks have yet to find each other: in a shell loop, below torchrun, srun,
    and where mpirun has started them and MPI does not connect them.
    """

    size: int
    engine: Engine
    rank: int | None = None


@dataclass(frozen=True)
class Starter:
    """Who started the processes of a job, by the variables in which a process finds its place."""

    rank: str
    size: str
    port: str = "MASTER_PORT"  # what the user sets to move the meeting point


SHELL = Starter("RANK_ID", "RANK_SIZE")
TORCHRUN = Starter("RANK", "WORLD_SIZE", "torchrun's --master-port")
SRUN = Starter("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True)
class MeetingPoint:
    """Where ranks that nobody has connected find rank 0, how many seconds they wait, and who started them."""

    address: str
    port: int
    seconds: float
    starter: Starter = SHELL

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def detect(engine: str | None = None) -> Launch:
    """The launch this process belongs to: horovodrun's, mpirun's, a shell loop's, torchrun's, srun's, or none.

    TensorFlow connects the ranks where it is chosen, or Horovod is not installed; else whoever has started them.

    Args:
        engine: that the script chooses, before KERAS_PAR_ENGINE.

    Raises:
        RuntimeError: the variables describe no job.
    """
    launch, wanted = found_in(os.environ), engine or os.environ.get(ENGINE) or None
    if wanted not in (None, "mpi", "gloo", "tensorflow", "solo"):
        raise RuntimeError(f"keras-par: {ENGINE}={one_line(wanted)} is unknown: set it to mpi, gloo or tensorflow.")
    if launch.engine == "solo" or wanted not in (None, "tensorflow"):
        return launch
    if wanted is None and horovod_library() is not None:
        return launch
    starter = starter_of(os.environ) if launch.engine == "mpi" else None
    rank = launch.rank if starter is None else place_of(os.environ, starter)[0]
    return replace(launch, engine="tensorflow", rank=rank)


def is_for_tensorflow() -> bool:
    """True if TensorFlow is to connect the ranks of this launch; not where it makes no job."""
    try:
        return detect().engine == "tensorflow"
    except RuntimeError:
        return False


def found_in(environ: Mapping[str, str]) -> Launch:
    """The launch that these variables describe.

    They count in this order. `horovodrun --gloo` sets HOROVOD_SIZE and a rendezvous address; `mpirun` and `horovodrun
    --mpi` set what Open MPI (OMPI_COMM_WORLD_SIZE) or MPICH and Intel MPI (PMI_SIZE) set for every process; srun may
    set PMI_SIZE, too, whether or not an MPI here listens to it. In a shell loop the user sets RANK_SIZE and RANK_ID.
    torchrun sets WORLD_SIZE and RANK, srun SLURM_STEP_NUM_TASKS and SLURM_PROCID.

    Raises:
        RuntimeError: the variables describe no job.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in environ:
        return started(number_in(environ, GLOO.size, 1) or 1, "gloo")
    if (variables := mpirun(environ)) is not None:
        return started(number_in(environ, variables.size, 1) or 1, "mpi")
    return by_hand(environ)


def mpirun(environ: Mapping[str, str]) -> Variables | None:
    """What the mpirun that has started this process calls its variables, None if none has."""
    if OPEN_MPI.size in environ:
        return OPEN_MPI
    if MPICH.size in environ and not started_by_srun(environ, MPICH.size, MPICH.rank):
        return MPICH
    return None


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
        RuntimeError: MASTER_PORT or HOROVOD_START_TIMEOUT is impossible, or MASTER_ADDR is missing where mpirun has
            started ranks on several hosts.
    """
    starter = starter_of(environ) or SHELL
    return MeetingPoint(address_of(environ, starter), port_of(environ, starter), start_seconds(environ), starter)


def start_seconds(environ: Mapping[str, str]) -> int:
    """How many seconds ranks wait for each other: HOROVOD_START_TIMEOUT, 120 by default.

    Raises:
        RuntimeError: it is impossible.
    """
    advice = "set it to the seconds that ranks wait for each other"
    return number(environ, "HOROVOD_START_TIMEOUT", 1, None, advice) or 120


def starter_of(environ: Mapping[str, str]) -> Starter | None:
    """Who started this process, None if nobody numbered it.

    torchrun may itself be started by srun, so its variables count more; those of a shell loop are the user's own.
    """
    if (variables := mpirun(environ)) is not None:
        return Starter(variables.rank, variables.size)
    for starter in (SHELL, TORCHRUN):
        if starter.rank in environ or starter.size in environ:
            return starter
    return SRUN if is_task(environ) else None


def is_task(environ: Mapping[str, str]) -> bool:
    """True in a task that srun has started, and not in the shell of an allocation.

    A batch script and the shells of `salloc` and `srun --pty bash` have a SLURM_PROCID, too, and a program that is
    started there is one process. Only the steps of srun have SLURM_STEP_NUM_TASKS.
    """
    if SRUN.rank not in environ or SRUN.size not in environ:
        return False
    step = environ.get("SLURM_STEP_ID", "0")
    is_shell = "SLURM_PTY_PORT" in environ and environ.get("SLURM_TASK_PID") != str(os.getpid())
    return step.isdecimal() and int(step) < NO_TASKS_STEP and not is_shell


def started_by_srun(environ: Mapping[str, str], size: str, rank: str) -> bool:
    """True if these variables of an MPI's are srun's numbering and so do not tell of any mpirun."""
    same = environ.get(size) == environ.get(SRUN.size) and environ.get(rank) == environ.get(SRUN.rank)
    return is_task(environ) and same


def place_of(environ: Mapping[str, str], starter: Starter) -> tuple[int, int]:
    """The rank of this process and the number of ranks.

    Raises:
        RuntimeError: one of the variables is missing or impossible.
    """
    size = number(environ, starter.size, 1, None, "set it to the number of processes of the job")
    if size is None:
        rank = one_line(environ[starter.rank])
        raise RuntimeError(
            f"keras-par: {starter.rank}={rank} is set but {starter.size} is not: set it to the number of processes of "
            f"the job, or unset {starter.rank}."
        )
    if size > 1 and starter.rank not in environ:
        raise RuntimeError(
            f"keras-par: {starter.size}={size} is set but {starter.rank} is not: set it to this process's number, from "
            f"0 to {size - 1}, or start the script by 'keras-par run -np {size}'."
        )
    advice = f"{starter.size} is {size}, so number the job's processes from 0 to {size - 1}"
    return number(environ, starter.rank, 0, size - 1, advice) or 0, size


def address_of(environ: Mapping[str, str], starter: Starter) -> str:
    """The host where rank 0 waits: MASTER_ADDR, else srun's first, else this one.

    Raises:
        RuntimeError: that is not known, since mpirun has started ranks on other hosts, too.
    """
    given, variables = environ.get("MASTER_ADDR"), mpirun(environ)
    if not given and variables is not None:
        here, size = (number_in(environ, name, 1) for name in (variables.local_size, variables.size))
        if here is not None and size is not None and here < size:
            raise RuntimeError(
                f"keras-par: mpirun has started {here} of {size} ranks on this host, and MASTER_ADDR, where TensorFlow "
                "has those of other hosts meet, is not set: set it to rank 0's host, as by 'mpirun -x "
                "MASTER_ADDR=HOST', or start the script by 'keras-par run --engine tensorflow'."
            )
    if given or starter is not SRUN or environ.get("SLURM_STEP_NUM_NODES") == "1":
        return given or "127.0.0.1"
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = next((environ[name] for name in names if environ.get(name)), None)
    return first_host(nodes) if nodes else environ.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"


def port_of(environ: Mapping[str, str], starter: Starter) -> int:
    """The port where rank 0 waits: MASTER_PORT, unless torchrun keeps a store there, else the job's own.

    Raises:
        RuntimeError: MASTER_PORT is impossible.
    """
    port = number(environ, "MASTER_PORT", 1, 65535, "set it to a port of rank 0's host that is free")
    job_of_mpi = next((environ[name] for name in JOBS_OF_MPI if name in environ), "")
    if port is None and mpirun(environ) and job_of_mpi:
        return 10000 + zlib.crc32(job_of_mpi.encode()) % 20000
    if port is None and starter is SRUN:  # jobs, and steps of a job, may share a host
        job, step = (int(re.sub(r"\D", "", environ.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        return 10000 + (31 * job + step) % 20000
    if port is not None and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return port % 10000 + (20000 if 10000 <= port < 20000 else 10000)  # where no outgoing connection gets one
    return port or PORT


def first_host(nodes: str) -> str:
    """The first host in SLURM's short form: "rack2node007" of "rack[2-3]node[007-010,12],login"."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first)
