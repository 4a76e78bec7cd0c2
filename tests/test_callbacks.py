"""LossMonitor's line and its error, RankCheckpoint's files, and callbacks of users' own."""

import re

import pytest

from tests import tasks
from tests.ranks.pool import Failure, together


def test_loss_monitor_prints_the_loss_of_the_step_over_all_ranks(ranks, plain):
    [losses], (printed, silent) = together(
        plain.begin(tasks.step_losses), ranks(2).begin(tasks.monitor, distributed=True)
    )
    assert silent == ""
    lines = printed.splitlines()
    pattern = re.compile(r"epoch: (\d+) step: (\d+), loss is (\d+\.\d+)")
    found = [pattern.fullmatch(line) for line in lines]
    assert all(found), lines
    assert [(int(m[1]), int(m[2])) for m in found if m] == [(1, 2), (2, 2)]
    for match, step in zip(found, (1, 4), strict=True):
        assert float(match[3]) == pytest.approx(losses[step], rel=1e-6)


def test_loss_monitor_works_without_a_strategy(ranks, plain):
    [losses], results = together(plain.begin(tasks.step_losses), ranks(1).begin(tasks.monitor, distributed=False))
    for printed in results:
        assert float(printed.splitlines()[0].split()[-1]) == pytest.approx(losses[1], rel=1e-6)


def test_loss_monitor_stops_all_ranks_at_a_nan(ranks):
    results = ranks(2).attempt(tasks.monitor, distributed=True, bad_step=2)
    assert all(isinstance(result, Failure) for result in results)
    assert results[0].message == results[1].message
    assert "epoch: 1 step: 2, loss is nan" in results[0].message


def test_checkpoints_are_written_by_each_rank_and_load_back(ranks, tmp_path):
    for rank, result in enumerate(ranks(2).run(tasks.checkpoints, directory=str(tmp_path))):
        assert result["folder"] == f"rank.{rank}"
        assert result["names"] == [f"CKP-{epoch}_5" for epoch in (1, 2, 3)]
        assert result["all"] == result["names"]
        assert result["equal"]


def test_checkpoints_keep_the_newest(ranks, tmp_path):
    options = {"every": 2, "keep": 3, "prefix": "model", "asynchronous": False}  # else one under way skips the next
    for result in ranks(2).run(tasks.checkpoints, directory=str(tmp_path), **options):
        assert result["names"] == [f"model-{name}" for name in ("2_5", "3_2", "3_4")]
        assert result["all"] == sorted(result["names"])


def test_a_callback_of_a_users_own_is_told_what_ours_are(ranks):
    for told in ranks(2).run(tasks.fit_with_own_callback):
        assert told["told"] == ["meets Other", "train begins", "Other begins", "all have begun"]
        assert told["size"] == 2


def test_a_callback_that_must_be_everywhere_is_missed(ranks):
    for result in ranks(2).attempt(tasks.fit_with_own_callback, only_on_rank_0=True):
        assert result.kind == "AgreedValueError" and "['Noting'] on rank 0 but [] on rank 1" in result.message
