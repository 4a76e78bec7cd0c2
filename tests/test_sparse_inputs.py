"""Sparse and ragged rows: unbuilt models train on them, and all calls return what those of one process do."""

import numpy as np
import pytest

from tests import sparse_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together

CELLS = [(kind, "sequential") for kind in tasks.KINDS] + [
    pytest.param(kind, "own", marks=[pytest.mark.slow] * (kind != "scipy_matrix")) for kind in tasks.KINDS
]


@pytest.mark.parametrize(("kind", "model"), CELLS)
def test_an_unbuilt_model_trains_on_sparse_rows(kind, model, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train, kind=kind, model=model, distributed=False),
        ranks(2).begin(tasks.train, kind=kind, model=model, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        for key in ("predict", "evaluate", "train_on_batch", "predict_on_batch"):
            np.testing.assert_allclose(result[key], twin[key], rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("call", ["train_on_batch", "test_on_batch", "predict_on_batch", "predict", "evaluate"])
def test_a_sparse_batch_may_be_the_first_that_a_model_sees(call, ranks, plain):
    [twin], results = together(
        plain.begin(tasks.first_call, call=call, distributed=False),
        ranks(2).begin(tasks.first_call, call=call, distributed=True),
    )
    for result in results:
        np.testing.assert_allclose(result, twin, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_a_rank_without_any_batch_has_a_stand_in_of_its_kind(kind, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train_on_the_only_batch, kind=kind, distributed=False),
        ranks(2).begin(tasks.train_on_the_only_batch, kind=kind, distributed=True),
    )
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


@pytest.mark.parametrize("call", ["predict", "predict_on_batch"])
def test_ragged_predictions_are_gathered(call, ranks, plain):
    [twin] = plain.run(tasks.predict_ragged, call=call, distributed=False)
    assert twin[0] == "RaggedTensor" and [len(row) for row in twin[1]] == [3, 0, 4, 1, 6, 2, 5]
    results = ranks(2).run(tasks.predict_ragged, call=call, distributed=True)
    assert results == [twin, twin]
