"""Batches of several sizes count in losses, metrics and the losses of single outputs as they do in one process."""

import pytest

from tests import batch_size_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together


def require_one_process_s(twin: dict, results: list[dict]) -> None:
    for result in results:
        assert relative_distance(result["weights"], twin["weights"]) < 1e-12
        assert len(result["logs"]) == len(twin["logs"])
        for one, other in zip(result["logs"], twin["logs"], strict=True):
            assert log_distance(one, other) < 1e-6  # Keras sums logs in float32


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_full_batches_of_one_size_after_another(size, ranks, plain):
    [twin], results = together(
        plain.begin(tasks.in_turn, distributed=False), ranks(size).begin(tasks.in_turn, distributed=True)
    )
    assert len(results) == size
    require_one_process_s(twin, results)


@pytest.mark.parametrize(("num_rows", "batch_size"), [(57, 8), (53, 14), (33, 32)])
def test_a_generator_with_a_smaller_last_batch(num_rows, batch_size, ranks, plain):
    how = {"num_rows": num_rows, "size": batch_size}
    [twin], results = together(
        plain.begin(tasks.of_a_generator, distributed=False, **how),
        ranks(2).begin(tasks.of_a_generator, distributed=True, **how),
    )
    assert len(results) == 2
    require_one_process_s(twin, results)
    assert {"a_loss", "b_loss"} <= twin["logs"][0].keys()
    assert results[1]["traced"] == 2  # to build the model, and for all batches; rank 0 looks at losses besides
