"""PyDatasets whose order is drawn by Python's random numbers: ranks read them as one process does, also by workers."""

import pytest

from tests import py_dataset_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together

CELLS = [
    (False, 1, None),
    (False, 1, 3),  # an order goes on in the next epoch
    (False, 1, 8),
    (False, 1, 11),
    (False, 3, None),
    (False, 3, 3),
    (True, 1, 6),
    (True, 3, 6),
]


@pytest.mark.parametrize(("is_infinite", "workers", "steps"), CELLS)
def test_the_order_is_that_of_one_process(is_infinite, workers, steps, ranks, plain, exactness):
    """Where an epoch ends before the data, of one process with one worker: Keras's several read on by chance."""
    arguments = {"is_infinite": is_infinite, "steps": steps}
    [twin], results = together(
        plain.begin(tasks.train, **arguments, workers=1 if steps else workers, distributed=False),
        ranks(2).begin(tasks.train, **arguments, workers=workers, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        assert result["steps"] == twin["steps"]
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5


def test_one_that_is_dealt_out_hears_of_epochs(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train_on_turning, distributed=False), ranks(2).begin(tasks.train_on_turning, distributed=True)
    )
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("steps", [3, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (7, 11))])
def test_slow_workers_on_one_rank_read_the_same_batches(steps, processes, shuffle, ranks, plain, exactness):
    arguments = {"is_infinite": False, "steps": steps, "shuffle": shuffle}
    [twin], results = together(
        plain.begin(tasks.train, **arguments, workers=1, distributed=False),
        ranks(2).begin(tasks.train, **arguments, workers=3, processes=processes, slow_rank=1, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("repetition", range(5))
def test_processes_without_an_end(repetition, ranks, plain, exactness):
    arguments = {"is_infinite": True, "workers": 3, "steps": 6, "processes": True}
    [twin], results = together(
        plain.begin(tasks.train, **arguments, distributed=False),
        ranks(2).begin(tasks.train, **arguments, distributed=True),
    )
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
