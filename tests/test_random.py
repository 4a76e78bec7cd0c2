"""Random numbers: dropout, noise and augmentation are one process's, and what cannot be is said."""

import numpy as np
import pytest

from tests import random_tasks
from tests.compare import log_distance, relative_distance
from tests.random_cases import RANDOM_CASES

QUICK_ON_4 = ("fewer-rows-than-ranks", "dropout-static", "adversarial")


def runs() -> list:
    assert set(QUICK_ON_4) <= set(RANDOM_CASES)
    return [(2, name) for name in RANDOM_CASES] + [
        pytest.param(4, name, marks=[pytest.mark.slow] * (name not in QUICK_ON_4)) for name in RANDOM_CASES
    ]


@pytest.mark.parametrize(("size", "name"), runs())
def test_ranks_end_where_one_process_ends_with_its_random_numbers(name, size, ranks, plain, exactness):
    [twin] = plain.run(random_tasks.train, name=name, distributed=False)
    results = ranks(size).run(random_tasks.train, name=name, distributed=True)
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), RANDOM_CASES[name].tolerance)
        assert result["seeds"] == twin["seeds"]
        assert name.startswith("adversarial") or log_distance(result["logs"], twin["logs"]) < 2e-5
    for own, first in zip(results[1]["weights"], results[0]["weights"], strict=True):
        np.testing.assert_array_equal(own, first)
