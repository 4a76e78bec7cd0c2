"""A job that SLURM ends because its time is up goes on: minutes of waiting, beside the other tests of SLURM.

The hosts are network namespaces, which only root may make.
"""

import re

import pytest

from tests.hosts.slurm_jobs import WEIGHTS, batch

pytestmark = pytest.mark.cluster
NAMES = ("kp-login", "kp-timed-0", "kp-timed-1")


def test_a_job_whose_time_is_up_goes_on(shell, scripts, one_host, tmp_path):
    """Of a limit of three minutes SLURM warns after half a minute to one and a half, in which it cannot be done."""
    scripts("train", tmp_path / "checkpoints", 12, PAUSE="0.2")
    expected = one_host(12)
    said, about = batch(shell, "requeue", "--time=3")
    assert re.search(r"stopped after step \d+ of epoch \d+ on all ranks, by SIGTERM", said), said
    assert re.search(r"Restarts=[1-9]", about), about + said
    # SLURM may warn the job again when it has said its weights, and is about to end: it says them again then.
    assert WEIGHTS.findall(said) in (expected, 2 * expected), said
