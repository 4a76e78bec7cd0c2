"""Where the ranks of a host keep a job's checkpoints in memory; who starts and ends ranks takes these away."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "KERAS_PAR_JOB"  # what tells a job from others, where it is started again after a failure
SHARED = Path("/dev/shm")


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The folder of the job on this host, which need not be there; None where nobody would go on from it."""
    job = environ.get(VARIABLE)
    return path_of(job, socket.gethostname()) if job and SHARED.is_dir() else None


def path_of(job: str, host: str) -> Path:
    """The folder of a job on a host, by the host's own name."""
    return SHARED / f"keras-par-{job}-{host}"


def remove(environ: Mapping[str, str]) -> None:
    """Takes away what the job has on this host."""
    found = folder(environ)
    if found is not None:
        shutil.rmtree(found, ignore_errors=True)
