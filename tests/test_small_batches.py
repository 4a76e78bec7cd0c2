"""Batches with fewer rows than ranks: every call works, on every kind of input, and ends where one process does."""

import numpy as np
import pytest

from tests import small_batch_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together

SIZES = [(2, 1), (3, 2)]  # ranks and rows of a batch: one rank is without rows
QUICK = {(2, 1, "arrays"), *((3, 2, kind) for kind in tasks.KINDS)}


def cells(kinds, quick) -> list:
    """Each kind with both sizes, all but the quick ones in `make test-all`."""
    every = [(*sizes, kind) for kind in kinds for sizes in SIZES]
    return [pytest.param(*cell, marks=[pytest.mark.slow] * (cell not in quick)) for cell in every]


@pytest.mark.parametrize(("size", "batch_size", "kind"), cells(tasks.KINDS, QUICK))
def test_training_ends_where_one_process_ends(kind, size, batch_size, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train, kind=kind, size=batch_size, distributed=False),
        ranks(size).begin(tasks.train, kind=kind, size=batch_size, distributed=True),
    )
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert relative_distance(result["slots"], twin["slots"]) < 1e-5
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        assert result["logs"] == results[0]["logs"]


OPTIONS = {"as ever": {}, "three steps": {"steps_per_execution": 3}, "eagerly": {"run_eagerly": True}}


@pytest.mark.parametrize(("size", "batch_size", "options"), cells(OPTIONS, {(3, 2, "three steps")}))
def test_every_call_returns_what_one_process_returns(options, size, batch_size, ranks, plain, exactness):
    options = OPTIONS[options]
    [twin], results = together(
        plain.begin(tasks.everything_else, size=batch_size, distributed=False, **options),
        ranks(size).begin(tasks.everything_else, size=batch_size, distributed=True, **options),
    )
    assert len(results) == size
    for result in results:
        assert result.keys() == twin.keys()
        for key in ("fit", "weights"):
            exactness(relative_distance(result[key], twin[key]), 1e-6)
        for key in set(twin) - {"fit", "weights"}:
            np.testing.assert_allclose(result[key], twin[key], rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"])
def test_one_row_may_be_the_first_that_an_unbuilt_model_sees(call, ranks, plain):
    [twin], results = together(
        plain.begin(tasks.first_call, call=call, distributed=False),
        ranks(3).begin(tasks.first_call, call=call, distributed=True),
    )
    assert len(results) == 3
    for result in results:
        np.testing.assert_allclose(result, twin, rtol=1e-5)
