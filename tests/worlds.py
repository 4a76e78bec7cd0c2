"""Jobs whose ranks come and go, and what their weights must be in the end."""

import os
import signal
import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from tests.compare import relative_distance
from tests.launcher import Job, program, run

NUM_EPOCHS = 5
TOLERANCE = 1e-6  # between worlds; the same world has the same bits


def arguments(folder: Path, num_epochs: int = NUM_EPOCHS, checkpoints: bool = True, every: Sequence[int] = ()) -> list:
    """The program of a job, which writes its checkpoints and its weights into a folder.

    Args:
        folder: for these.
        num_epochs: to train.
        checkpoints: False for none.
        every: so many steps one on the disk, and so many one in memory.
    """
    where = folder / "checkpoints" if checkpoints else "none"
    return [program("worlds"), str(where), str(num_epochs), str(folder / "weights.npz"), *map(str, every)]


def weights(folder: Path) -> list[np.ndarray]:
    """The last weights of a job."""
    with np.load(folder / "weights.npz") as found:
        return [found[name] for name in found.files]


def undisturbed(folder: Path, num_ranks: int, num_epochs: int = NUM_EPOCHS, **variables: str) -> list[np.ndarray]:
    """The last weights of a training that nothing happens to."""
    ended = run("-np", num_ranks, *arguments(folder, num_epochs, checkpoints=False), **variables)
    assert ended.status == 0, ended.stderr
    return weights(folder)


def are_equal(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
    """True for the same bits."""
    return all(np.array_equal(*pair) for pair in zip(ours, theirs, strict=True))


def distance(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest relative distance of two weights."""
    return max(relative_distance(*pair) for pair in zip(ours, theirs, strict=True))


def kill_rank(job: Job, rank: int) -> None:
    """Kills the process of a rank."""
    [found] = [process for process in ranks(job) if number(process) == rank]
    os.kill(found.pid, signal.SIGKILL)


def ranks(job: Job) -> list[psutil.Process]:
    """The processes of the ranks."""
    return [process for process in job.processes() if "KERAS_PAR_WATCH" in process.environ()]


def number(process: psutil.Process) -> int:
    found = process.environ()
    return int(found.get("OMPI_COMM_WORLD_RANK", found.get("HOROVOD_RANK", "-1")))


def discovery_script(folder: Path, text: str) -> tuple[Path, Path]:
    """A host discovery script, and the file that it prints."""
    script, listed = folder / "discover", folder / "hosts"
    listed.write_text(text)
    script.write_text(f"#!/bin/sh\ncat '{listed}'\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script, listed
