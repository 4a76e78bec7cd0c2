"""Reads from the environment how this process was started, before any communication library is loaded."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Launch:
    """How many processes were started together, and what may connect them.

    `rank` is known beforehand only in a shell loop, whose ranks have yet to find each other.
    """

    size: int
    engine: Literal["solo", "mpi", "gloo"]
    rank: int | None = None


@dataclass(frozen=True)
class MeetingPoint:
    """Where the ranks of a shell loop find rank 0, and how many seconds they wait for each other."""

    address: str
    port: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


def detect() -> Launch:
    """The launch this process belongs to: horovodrun's, mpirun's, a shell loop's, or none, in this order.

    `horovodrun --gloo` sets HOROVOD_SIZE and a rendezvous address; `mpirun` and `horovodrun --mpi` set what Open
    MPI (OMPI_COMM_WORLD_SIZE) or MPICH and Intel MPI (PMI_SIZE) set for every process. In a shell loop the user
    sets RANK_SIZE and RANK_ID.

    Raises:
        RuntimeError: RANK_SIZE and RANK_ID describe no job.
    """
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        return started(int(os.environ.get("HOROVOD_SIZE", "1")), "gloo")
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        if variable in os.environ:
            return started(int(os.environ[variable]), "mpi")
    return by_hand(os.environ)


def started(size: int, engine: Literal["mpi", "gloo"]) -> Launch:
    return Launch(size, engine if size > 1 else "solo")


def by_hand(environ: Mapping[str, str]) -> Launch:
    """The launch that RANK_SIZE (default 1) and RANK_ID describe, by the names of MindSpore's scripts.

    Raises:
        RuntimeError: one of them is impossible, or RANK_ID is missing.
    """
    size = number(environ, "RANK_SIZE", 1, None, "set it to the number of processes of the job")
    if size is not None and size > 1 and "RANK_ID" not in environ:
        raise RuntimeError(
            f"keras-par: RANK_SIZE={size} is set but RANK_ID is not: set it to this process's number, from 0 to "
            f"{size - 1}, or start the script by 'keras-par run -np {size}'."
        )
    size = size or 1
    said = "in the environment" if "RANK_SIZE" in environ else "the default, as it is not set"
    advice = f"RANK_SIZE is {size} ({said}), so number the job's processes from 0 to {size - 1}"
    rank = number(environ, "RANK_ID", 0, size - 1, advice)
    return Launch(size, "gloo", rank) if size > 1 else Launch(1, "solo")


def meeting_point(environ: Mapping[str, str]) -> MeetingPoint:
    """Where ranks started by hand meet, by the names of torchrun; they wait HOROVOD_START_TIMEOUT seconds.

    Raises:
        RuntimeError: MASTER_PORT or HOROVOD_START_TIMEOUT is impossible.
    """
    port = number(environ, "MASTER_PORT", 1, 65535, "set it to a port of rank 0's host that is free")
    seconds = number(environ, "HOROVOD_START_TIMEOUT", 1, None, "set it to the seconds that ranks wait for each other")
    return MeetingPoint(environ.get("MASTER_ADDR") or "127.0.0.1", port or 29500, seconds or 120)


def device(environ: Mapping[str, str], num_gpus: int) -> int | None:
    """The GPU that DEVICE_ID gives this process, under any launcher; None if it is not set.

    Raises:
        RuntimeError: it is no number, or no GPU that this process sees. Without GPUs any number will do.
    """
    advice = f"this process sees {num_gpus} GPU(s), and CUDA_VISIBLE_DEVICES may hide others"
    return number(environ, "DEVICE_ID", 0, num_gpus - 1 if num_gpus else None, advice if num_gpus else "it is a device")


def number(environ: Mapping[str, str], name: str, lowest: int, highest: int | None, advice: str) -> int | None:
    """The whole number in a variable, None if it is not set.

    Raises:
        RuntimeError: it is something else, or out of its range.
    """
    text = environ.get(name)
    if text is None:
        return None
    value = int(text) if text.isdecimal() and len(text) < 10 else -1
    if value < lowest or (highest is not None and value > highest):
        span = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise RuntimeError(f"keras-par: {name}={text!r} is no whole number {span}: {advice}.")
    return value
