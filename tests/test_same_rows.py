"""Ranks that add up the rows of a table in other orders, as GPUs do, still have the same weights, and one process's."""

import numpy as np
import pytest

from tests import same_rows_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", tasks.OPTIMIZERS)
def test_orders_of_ranks_do_not_part_them(name, size, ranks, plain, exactness):
    [theirs], results = together(
        plain.begin(tasks.train, name=name, distributed=False),
        ranks(size).begin(tasks.train, name=name, distributed=True),
    )
    for ours in results:
        exactness(relative_distance(ours, theirs), 1e-12)
        assert all(np.array_equal(one, other) for one, other in zip(ours, results[0], strict=True))


def test_orders_of_ranks_would_part_them(ranks):
    outcomes = ranks(2).attempt(tasks.train, name="sgd", distributed=True, shared=False)
    assert all("weights have parted: 'sequential" in outcome.message for outcome in outcomes)
