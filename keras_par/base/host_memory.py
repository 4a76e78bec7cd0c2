"""Where the ranks of a host keep a job's checkpoints in memory; who starts and ends ranks takes these away."""

import contextlib
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from keras_par.base.environment import number

JOB = "KERAS_PAR_JOB"  # what tells a job from others, where it is started again after a failure
ATTEMPT = "KERAS_PAR_RESTART_COUNT"
NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
SHARED = Path("/dev/shm")
GENERATION = re.compile(r"([0-9]{1,9})\.[0-9]{1,18}")


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the job on this host, there or not; None, on all hosts, where nobody would go on from it.

    In it are folders, one for each folder of checkpoints on the disk, and in these the generations.

    Raises:
        RuntimeError: what names the job cannot be a name.
    """
    job = environ.get(JOB)
    if job and not NAME.fullmatch(job):
        raise RuntimeError(f"keras-par: {JOB}={job[:40]!r} is no job's name: 'keras-par run' sets it, so unset it.")
    return path_of(job, socket.gethostname()) if job else None


def path_of(job: str, host: str) -> Path:
    """The folder of a job on a host, by the host's own name."""
    return SHARED / f"keras-par-{job}-{host}"


def attempt(environ: Mapping[str, str] = os.environ) -> int:
    """How often the job was started before.

    Raises:
        RuntimeError: what says so is no number.
    """
    return number(environ, ATTEMPT, 0, None, "'keras-par run' sets it for each rank, so unset it") or 0


def generation(serial: int) -> str:
    """The folder of a checkpoint of this attempt; no other attempt writes there."""
    return f"{attempt()}.{serial}"


def generations(of: Path, before: int) -> Iterator[Path]:
    """Those of attempts before one, in the folder for a folder on the disk."""
    for path in held_in(of):
        match = GENERATION.fullmatch(path.name)
        if match and int(match[1]) < before:
            yield path


def remove(environ: Mapping[str, str]) -> None:
    """Takes away what this attempt of the job and those before it have on this host."""
    found = folder(environ)
    if found is None:
        return
    for each in held_in(found):
        for path in generations(each, attempt(environ) + 1):
            shutil.rmtree(path, ignore_errors=True)
    for path in (*held_in(found), found):
        with contextlib.suppress(OSError):  # a later attempt is there
            path.rmdir()


def held_in(folder: Path) -> list[Path]:
    """What is in a folder; nothing where another agent of this host has removed it meanwhile."""
    with contextlib.suppress(OSError):
        return list(folder.iterdir())
    return []
