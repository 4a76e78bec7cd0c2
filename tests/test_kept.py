"""Logs and state of training steps of users' own are those of one process, or it is said why they cannot be."""

import math

import numpy as np
import pytest

from tests import kept_tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together


def test_logs_are_those_of_all_rows(ranks, plain):
    [twin] = plain.run(kept_tasks.logs, distributed=False)
    assert set(twin["logs"]) == {"loss", "accuracy", "mean"}
    results = ranks(2).run(kept_tasks.logs, distributed=True)
    assert len(results) == 2
    for result in results:
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        assert len(result["steps"]) == len(twin["steps"]) == 20
        for ours, theirs in zip(result["steps"], twin["steps"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


def test_a_queue_of_gathered_rows_is_one_processs(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(kept_tasks.keep, gathered=True, distributed=False),
        ranks(2).begin(kept_tasks.keep, gathered=True, distributed=True),
    )
    for result in results:
        exactness(relative_distance([result["queue"]], [twin["queue"]]), 1e-6)
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert result["warnings"] == []


def test_a_queue_that_parts_is_told_of_once(ranks):
    for result in ranks(2).run(kept_tasks.keep, gathered=False, distributed=True):
        assert len(result["warnings"]) == 1
        assert "queue'" in result["warnings"][0] and "kp.ops.all_gather" in result["warnings"][0]


def test_stateful_layers_keep_each_ranks_rows(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(kept_tasks.stateful, distributed=False), ranks(2).begin(kept_tasks.stateful, distributed=True)
    )
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
    [states] = twin["states"]
    own = [result["states"][0] for result in results]
    assert [len(state) for state in own] == [4, 4]
    exactness(relative_distance([np.concatenate(own)], [states]), 1e-6)


@pytest.mark.parametrize("options", [{}, {"zero": 3, "zero_min_kb": 0}])
def test_the_ranges_of_float8_are_those_of_all_rows(options, ranks, plain):
    [twin], (first, second) = together(
        plain.begin(kept_tasks.float8, distributed=False),
        ranks(2).begin(kept_tasks.float8, distributed=True, **options),
    )
    ranges = [path for path in twin if "amax_history" in path or "scale" in path]
    assert len(ranges) == 12
    for path, value in first.items():
        np.testing.assert_array_equal(value, second[path], err_msg=path)
        # float8 rounds to 3 bits: a last digit that float rounding moves across a border moves all after it
        np.testing.assert_allclose(value, twin[path], rtol=5e-2, atol=5e-3, err_msg=path)


@pytest.mark.parametrize(("mode", "shapes"), [("int8", [(6, 9), (9, 4)]), ("int4", [(6, 5), (9, 2)])])
def test_packed_kernels_are_divided_beside_adapters(mode, shapes, ranks, plain, exactness):
    [alone], results = together(
        plain.begin(kept_tasks.tune_quantized, distributed=False, mode=mode),
        ranks(2).begin(kept_tasks.tune_quantized, distributed=True, mode=mode),
    )
    assert [whole for whole, _ in alone["packed"]] == shapes
    for found in results:
        assert [whole for whole, _ in found["packed"]] == shapes
        assert all(math.prod(local) < math.prod(whole) for whole, local in found["packed"])
        exactness(relative_distance(found["weights"], alone["weights"]), 1e-6)
        exactness(relative_distance([found["predicted"]], [alone["predicted"]]), 1e-6)


@pytest.mark.parametrize(
    ("kind", "said"),
    [("function", "overrides make_train_function"), ("constant", "use kp.local_batch_size(batch_size)")],
)
def test_what_cannot_be_is_one_sentence(kind, said, ranks):
    for found in ranks(2).run(kept_tasks.refused, kind=kind):
        assert said in found, found
