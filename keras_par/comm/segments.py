"""Memory that ranks of one host share: one of them makes it, the others find it, or all know why there is none."""

import ctypes
import os
import secrets
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_par.comm import native
from keras_par.comm.communicator import Communicator

BOOT = Path("/proc/sys/kernel/random/boot_id")  # one for each start of a host


@dataclass(frozen=True)
class Library:
    """The compiled library.

    Args:
        path: of its file.
        operations: TensorFlow's.
        functions: that join and leave.
    """

    path: str
    operations: Any
    functions: ctypes.CDLL


def loaded(path: str) -> Library:
    """The library of a file; TensorFlow loads it first, or would not see its operations.

    Raises:
        OSError, tf.errors.OpError: it does not load on this host.
    """
    operations = tf.load_op_library(path)
    functions = ctypes.CDLL(path)
    functions.keras_par_shared_bytes.restype = ctypes.c_int64
    return Library(path, operations, functions)


def share(
    job: Communicator, groups: Sequence[Sequence[int]], refusal: str | None = None
) -> tuple[Library | None, int, str | None]:
    """The library, the number by which its operations know the memory of this rank's group, and why there is none.

    All ranks of the job call it together. Costs four all-gathers of some bytes. Where the library is not compiled yet,
    there is none in this job.

    Args:
        job: all ranks.
        groups: disjoint ones that hold every rank.
        refusal: why this rank does not take part, None if it does.
    """
    own = next(tuple(ranks) for ranks in groups if job.rank in ranks)
    offer, file, why = None, -1, refusal
    if why is None and job.rank == own[0] and len(own) > 1:
        offer, file, why = make(len(own))
    answers = job.all_gather_object([offer, why, host()], "kp.shared.offer")
    offer, why = answers[own[0]][0], next((answers[rank][1] for rank in own if answers[rank][1]), None)
    if why is None and len({answers[rank][2] for rank in own}) > 1:
        why = "the ranks are on several hosts"
    library, number = None, -1
    if offer is not None and why is None:
        library, number, why = joined(offer, own.index(job.rank), len(own))
    whys = job.all_gather_object(why, "kp.shared.joined")
    if file >= 0:
        os.close(file)
    why = next((whys[rank] for rank in own if whys[rank]), None)
    if library is not None and why is not None and number >= 0:
        library.functions.keras_par_shared_leave(number)
    return (library, number, None) if why is None else (None, -1, why)


def host() -> str:
    """What tells this host from others, and from others that were started from one image."""
    return f"{socket.gethostname()} {BOOT.read_text().strip() if BOOT.exists() else ''}"


def make(size: int) -> tuple[dict[str, Any] | None, int, str | None]:
    """On a group's first rank, what others need to know to share memory, and its open file; or why there is none."""
    file = -1
    try:
        library = loaded(str(native.compiled()))
        num_bytes = library.functions.keras_par_shared_bytes(size)
        file = os.memfd_create("keras-par")
        os.posix_fallocate(file, 0, num_bytes)
    except (RuntimeError, OSError, tf.errors.OpError) as error:
        if file >= 0:
            os.close(file)
        return None, -1, first_line(error)
    token = secrets.token_bytes(16)
    os.pwrite(file, token, 0)
    return {"path": f"/proc/{os.getpid()}/fd/{file}", "token": token.hex(), "library": library.path}, file, None


def joined(offer: dict[str, Any], rank: int, size: int) -> tuple[Library | None, int, str | None]:
    """The library and the memory's number, once this rank takes part in what a group's first offers; or why it cannot.

    Args:
        offer: as `make` has it.
        rank: among those of the group.
        size: of the group.
    """
    try:
        library = loaded(offer["library"])
        file = opened(offer["path"], bytes.fromhex(offer["token"]))
    except (OSError, tf.errors.OpError) as error:
        return None, -1, f"rank {rank} cannot share memory with rank 0 ({first_line(error)})"
    try:
        number = library.functions.keras_par_shared_join(file, rank, size)
        if number >= 0:
            return library, number, None
        return None, -1, f"rank {rank} cannot map the memory of rank 0"
    finally:
        os.close(file)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("keras-par: ").rstrip(".")


def opened(path: str, token: bytes) -> int:
    """The descriptor of another rank's file.

    Raises:
        OSError: the path leads to nothing, or to something else, on another host or in another container.
    """
    with open(path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(token)) != token:
            raise OSError(f"{path} is another file here")
    return os.open(path, os.O_RDWR)
