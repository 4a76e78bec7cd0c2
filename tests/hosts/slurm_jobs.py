"""Jobs in a SLURM's queue: the page's batch scripts, what they log, and what is left of them."""

import re

from tests.patience import PATIENCE, comes_to_be
from tests.ranks.pool import REPOSITORY

PAGE = (REPOSITORY / "docs/clusters/slurm.md").read_text()
WEIGHTS = re.compile(r"weights (\w+)")
JOB_SECONDS = 1500  # on a busy machine a job's time may be up several times


def batch(shell, script, options="") -> tuple[str, str]:
    """What a batch script of the page has logged in the end, and what SLURM says about its job."""
    number = shell(f"sbatch --parsable {options} {script}.sbatch").strip()
    left = left_in_queue(shell, JOB_SECONDS)
    said = shell(f"cat {script}.log")
    assert not left, left + said
    return said, shell(f"scontrol show job {number}")


def left_in_queue(shell, seconds: float = PATIENCE) -> str:
    """The jobs that are there yet after so many seconds."""
    comes_to_be(lambda: not shell("squeue --noheader"), seconds)
    return shell("squeue --noheader")
