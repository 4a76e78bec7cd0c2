"""A model works on all ranks whenever it was made, or says that it cannot; never on each rank by itself in silence."""

import numpy as np
import pytest

from tests import binding_tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure, together

TRAINED = [which for which in binding_tasks.BEFORE if which != "never compiled"]


@pytest.mark.long
@pytest.mark.parametrize("which", TRAINED)
def test_models_older_than_the_strategy_train_together(which, ranks, plain, exactness, tmp_path):
    path = str(tmp_path / "model.keras")
    [twin] = plain.run(binding_tasks.train, which=which, distributed=False, path=path)
    results = ranks(2).run(binding_tasks.train, which=which, distributed=True, path=path)
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)
    for own, first in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(own, first)


def test_any_method_binds_a_model(ranks, plain):
    methods = ["evaluate", "predict", "train_on_batch", "predict_on_batch", "never compiled"]
    [twin], results = together(
        plain.begin(binding_tasks.use_otherwise, methods=methods, distributed=False),
        ranks(2).begin(binding_tasks.use_otherwise, methods=methods, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        for method, ours, theirs in zip(methods, result, twin, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=method)


def test_without_a_strategy_all_ranks_are_told(ranks):
    methods = ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]
    results = ranks(2).run(binding_tasks.without_strategy, methods=methods)
    assert len(results) == 2
    for said in results:
        for method, sentence in zip(methods, said, strict=True):
            assert f"{method} of 'sequential' would work on each of the 2 ranks by itself" in sentence
            assert "set_distribution(kp.DataParallel())" in sentence and "kp.independent()" in sentence


@pytest.mark.long
def test_a_strategy_on_one_rank_only_ends_both(ranks):
    pool = ranks(2)
    results = pool.attempt(binding_tasks.strategy_on_rank_0)
    pool.restart()  # the job is over
    assert [result.kind for result in results] == ["RuntimeError", "ValueError"]
    assert "rank 1 failed first" in results[0].message
    assert all("no strategy is set" in result.message for result in results)


def test_ranks_use_models_alone_where_they_say_so(ranks):
    results = ranks(2).run(binding_tasks.independent)
    assert [result["size"] for result in results] == [2, 2]
    for alone, shared in zip(results[0]["alone"], results[0]["together"], strict=True):
        np.testing.assert_allclose(alone, shared, rtol=1e-5, atol=1e-6)
    assert results[1]["alone"] is None
    for own, first in zip(results[1]["weights"], results[0]["weights"], strict=True):
        np.testing.assert_array_equal(own, first)
    assert [result["own"][0] for result in results] == [(8, 8), (8, 9)]


def test_a_callback_uses_its_model_alone(ranks):
    on_0, on_1 = ranks(2).run(binding_tasks.independent_in_callback)
    assert len(on_0) == 4 and len(on_1) == 2
    np.testing.assert_allclose(on_0[::2], on_1, rtol=1e-5)
    assert on_0[1::2] == on_1


def test_a_layout_map_takes_older_models_that_it_does_not_divide(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(binding_tasks.train_plainly), ranks(2).begin(binding_tasks.built_before_a_layout_map, divides=False)
    )
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)
    for result in ranks(2).attempt(binding_tasks.built_before_a_layout_map, divides=True):
        assert isinstance(result, Failure) and result.kind == "ValueError", result
        assert "it divides its variable 'sequential" in result.message and "then build or load" in result.message
