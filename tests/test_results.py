"""What evaluate, predict, callbacks and the rest return under a strategy, against one process of plain Keras."""

import numpy as np
import pytest

from tests import tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "num_rows", [65, pytest.param(64, marks=pytest.mark.long), pytest.param(50, marks=pytest.mark.long)]
)
def test_evaluate_predict_and_batches_return_the_whole(num_rows, size, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.results, num_rows=num_rows, batch_size=16, distributed=False),
        ranks(size).begin(tasks.results, num_rows=num_rows, batch_size=16, distributed=True),
    )
    for result in results:
        for logs in ("evaluate", "train_on_batch", "test_on_batch"):
            assert result[logs].keys() == twin[logs].keys()
            for key, value in twin[logs].items():
                assert result[logs][key] == pytest.approx(value, rel=1e-5), (logs, key)
        for rows in ("predict", "predict_on_batch"):
            assert result[rows].shape == twin[rows].shape
            exactness(relative_distance([result[rows]], [twin[rows]]), 1e-6)
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)


def test_predict_of_named_outputs_and_several_steps_per_execution(ranks, plain):
    [twin], results = together(
        plain.begin(tasks.predict_nested, distributed=False), ranks(2).begin(tasks.predict_nested, distributed=True)
    )
    for result in results:
        assert result.keys() == twin.keys()
        for key in twin:
            np.testing.assert_allclose(result[key], twin[key], rtol=1e-5, atol=1e-6)


def test_an_overflow_on_one_rank_skips_the_update_on_all(ranks, plain, exactness):
    [twin] = plain.run(tasks.mixed_overflow, distributed=False)
    assert twin["scales"][::4] == [2.0**12, 2.0**11, 2.0**10, 2.0**9], "the first step of each epoch must overflow"
    results = ranks(2).run(tasks.mixed_overflow, distributed=True)
    for result in results:
        assert result["scales"] == twin["scales"]
        exactness(relative_distance(result["weights"], twin["weights"]), 2e-3)  # float16 rounds at 5e-4
    assert all(np.array_equal(a, b) for a, b in zip(results[0]["weights"], results[1]["weights"], strict=True))


def test_unsynchronized_batchnorm_ends_equal_on_all_ranks(ranks):
    first, *others = ranks(4).run(tasks.unsynchronized_batchnorm)
    assert len(others) == 3
    for other in others:
        for own, theirs in zip(other, first, strict=True):
            assert np.all(np.isfinite(own))
            np.testing.assert_array_equal(own, theirs)


def test_dropout_differs_between_ranks_by_their_rows_of_one_mask(ranks, plain):
    [whole], (first, second) = together(
        plain.begin(tasks.dropout_masks, distributed=False), ranks(2).begin(tasks.dropout_masks, distributed=True)
    )
    assert first != second and len(whole) == 2
    for batch, ours, theirs in zip(whole, first, second, strict=True):
        assert [*ours, *theirs] == batch


def test_callbacks_decide_alike_on_all_ranks_and_as_in_one_process(ranks, plain, exactness):
    [twin] = plain.run(tasks.early_stopping, distributed=False)
    assert len(twin["logs"]["loss"]) < 15, "the case must stop early"
    results = ranks(2).run(tasks.early_stopping, distributed=True)
    for result in results:
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
    assert results[0]["logs"] == results[1]["logs"]


def test_a_stop_on_one_rank_stops_all_at_the_same_step(ranks):
    assert ranks(2).run(tasks.stop_on_one_rank) == [5, 5]


def test_callbacks_see_the_logs_of_all_ranks_after_each_step(ranks, plain):
    [twin], results = together(
        plain.begin(tasks.logs_of_steps, distributed=False), ranks(2).begin(tasks.logs_of_steps, distributed=True)
    )
    assert results[0] == results[1]
    assert len(results[0]) == len(twin) == 20
    for ours, theirs in zip(results[0], twin, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_stock_data_parallel_trains_on_all_ranks(ranks, plain, exactness):
    [twin], results = together(plain.begin(tasks.train_plainly), ranks(2).begin(tasks.stock_distribution))
    for result in results:
        assert result["devices"] == ["cpu:0", "cpu:1"]
        assert result["count"] == 2
        exactness(relative_distance(result["weights"], twin), 1e-6)


@pytest.mark.parametrize(("compression", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_compressed_gradients_end_near(compression, tolerance, ranks, plain):
    [twin], results = together(
        plain.begin(tasks.train, name="sgd-momentum", distributed=False),
        ranks(2).begin(tasks.train, name="sgd-momentum", distributed=True, compression=compression),
    )
    for result in results:
        assert 0 < relative_distance(result["weights"], twin["weights"]) < tolerance
    for own, first in zip(results[1]["weights"], results[0]["weights"], strict=True):
        np.testing.assert_array_equal(own, first)


def test_reduction_sum_is_the_mean_times_the_ranks(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train, name="no-shuffle-sgd-doubled", distributed=False),
        ranks(2).begin(tasks.train, name="no-shuffle-sgd", distributed=True, reduction="sum"),
    )
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)


def test_small_buckets_change_nothing(ranks):
    whole = ranks(2).run(tasks.train, name="adam", distributed=True)
    parts = ranks(2).run(tasks.train, name="adam", distributed=True, fusion_mb=1e-4)
    for a, b in zip(whole[0]["weights"], parts[0]["weights"], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("own step", "it has a train_step of its own"),
        ("normalization", "normalizes by the rows of all ranks"),
        ("unsynchronized", None),
    ],
)
def test_a_step_that_xla_cannot_compile_runs_without_it_and_warns(kind, reason, ranks):
    for messages in ranks(2).run(tasks.jit_warnings, kind=kind):
        ignored = [message for message in messages if "jit_compile=True is ignored" in message]
        assert len(ignored) == (reason is not None), messages
        assert reason is None or reason in ignored[0]
