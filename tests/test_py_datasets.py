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
    arguments = {"is_infinite": is_infinite, "workers": workers, "steps": steps}
    [twin], results = together(
        plain.begin(tasks.train, **arguments, distributed=False),
        ranks(2).begin(tasks.train, **arguments, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        assert result["steps"] == twin["steps"]
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5


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
