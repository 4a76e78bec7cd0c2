"""Metrics show one process's value on all ranks, or rank 0 says why not and what to do."""

import numpy as np
import pytest

from tests import metric_tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure, together

ALONG = ("correlation along rows", "concordance along rows", "cosine along rows", "dice")
EXACT = ("variable", "maximum, said", "of rows", "mean", "Keras's", *ALONG)
WARNED = {
    "maximum": "say how the ranks' are combined, as by metric.across_ranks = {'peak': 'max'}",
    "moving mean": "say how the ranks' are combined, as by metric.across_ranks = {'value': 'mean'}",
    "across the batch": "because it looks across the rows of a batch, of which each rank has its own",
}


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("which", EXACT)
def test_sums_and_what_is_said_are_one_process_s(which, steps, ranks, plain):
    [twin], results = together(
        plain.begin(metric_tasks.train, which=which, distributed=False),
        ranks(2).begin(metric_tasks.train, which=which, distributed=True, steps_per_execution=steps),
    )
    assert len(results) == 2
    for result in results:
        np.testing.assert_allclose(result["values"], twin["values"], rtol=1e-5)
        assert result["said"] == []


@pytest.mark.parametrize("which", metric_tasks.STATES)
def test_what_users_can_read_of_metrics_is_the_whole_job_s(which, ranks, plain):
    [twin], results = together(
        plain.begin(metric_tasks.states, which=which, distributed=False),
        ranks(2).begin(metric_tasks.states, which=which, distributed=True),
    )
    assert len(results) == 2 and len(twin) >= 5
    for seen in results:
        assert [each["when"] for each in seen] == [each["when"] for each in twin]
        for ours, theirs in zip(seen, twin, strict=True):
            assert ours["results"] == pytest.approx(theirs["results"], rel=1e-12, abs=1e-12), ours["when"]
            for own, one in zip(ours["variables"], theirs["variables"], strict=True):
                np.testing.assert_allclose(own, one, rtol=1e-12, atol=1e-12, err_msg=ours["when"])


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("which", WARNED)
def test_other_metrics_are_named_once(which, eager, ranks, plain):
    [twin], (first, second) = together(
        plain.begin(metric_tasks.train, which=which, distributed=False),
        ranks(2).begin(metric_tasks.train, which=which, distributed=True, run_eagerly=eager),
    )
    assert not np.allclose(first["values"], twin["values"], rtol=1e-4)
    [said] = first["said"]
    assert WARNED[which] in said and "in one process" in said
    assert second["said"] == []
    assert relative_distance(first["weights"], twin["weights"]) < 1e-6
    np.testing.assert_array_equal(first["values"], second["values"])


def test_a_moving_mean_that_is_said_to_be_one_is_averaged(ranks, plain):
    [twin], results = together(
        plain.begin(metric_tasks.train, which="moving mean", distributed=False),
        ranks(2).begin(metric_tasks.train, which="moving mean, said", distributed=True),
    )
    for result in results:
        np.testing.assert_allclose(result["values"], twin["values"], rtol=1e-4)
        assert result["said"] == []


def test_an_unknown_word_is_refused(ranks):
    for result in ranks(2).attempt(metric_tasks.train, which="unknown word", distributed=True):
        assert isinstance(result, Failure) and result.kind == "ValueError", result
        assert "across_ranks['peak'] = 'largest': use one of 'sum', 'mean', 'max', 'min'" in result.message
