"""A rank that is killed within a collective or a checkpoint of ZeRO is named, nothing is left, and training goes on."""

import re

import pytest

from keras_par.checkpoint.files import TEMPORARY
from tests.launcher import of_kind, program, run

WEIGHTS = r"weights (\w+) of 2"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """By stage the weights and the state of a training that nothing disturbs."""
    found = {}

    def of_stage(stage: int) -> str:
        if stage not in found:
            folder = tmp_path_factory.mktemp(f"stage{stage}")
            job = run("-np", 2, program("zero_faults"), stage, folder)
            [found[stage]] = set(re.findall(WEIGHTS, job.stdout))
        return found[stage]

    return of_stage


@pytest.mark.long
@pytest.mark.parametrize(
    ("stage", "moment"),
    [
        pytest.param(1, "reduce_scatter@12", marks=pytest.mark.slow),
        pytest.param(2, "reduce_scatter@40", marks=pytest.mark.slow),
        (3, "all_gather@70"),
        pytest.param(3, "reduce_scatter@70", marks=pytest.mark.slow),
        pytest.param(3, "checkpoint@4", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_is_named_and_its_job_goes_on(stage, moment, uninterrupted, tmp_path):
    options = ["--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    job = run("-np", 2, *options, program("zero_faults"), stage, tmp_path / "checkpoints", moment)
    assert job.status == 0, job.stderr
    assert f"in {moment.replace('@', ' ')}" in job.stdout
    [crash] = of_kind(tmp_path / "out", "crash")
    assert crash["rank"] == 1 and "SIGKILL" in crash["text"]
    assert "CKP-" in of_kind(tmp_path / "out", "resume")[-1]["text"]
    assert re.findall(WEIGHTS, job.stdout) == [uninterrupted(stage)] * 2
    assert not list((tmp_path / "checkpoints").glob(f"*{TEMPORARY}*"))
