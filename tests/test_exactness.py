"""N ranks end where one process ends, for the trainings of `tests/cases.py` and `layer_cases.py`."""

import numpy as np
import pytest

from tests import tasks
from tests.compare import comparable, log_distance, relative_distance, slot_distance
from tests.layer_cases import CASES
from tests.ranks.pool import together

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
QUICK_ON_4 = ("adam", "accumulation", "batchnorm-synchronized", "embedding-adam", "one-row-left-over")
LOG_TOLERANCE = 2e-5  # the loss of an epoch, which Keras sums in float32


def runs() -> list:
    """Each case on 2 and on 4 ranks, most of the latter in `make test-all`."""
    assert set(QUICK_ON_4) <= set(CASES)
    slow = set(CASES) - set(QUICK_ON_4)
    return [(2, name) for name in CASES] + [
        pytest.param(4, name, marks=[pytest.mark.slow] * (name in slow)) for name in CASES
    ]


@pytest.mark.parametrize(("size", "name"), runs())
def test_ranks_end_where_one_process_ends(name, size, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.train, name=name, distributed=False),
        ranks(size).begin(tasks.train, name=name, distributed=True),
    )
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), CASES[name].tolerance)
        of_logs = log_distance(comparable(result["logs"]), comparable(twin["logs"]))
        assert of_logs < max(LOG_TOLERANCE, CASES[name].tolerance)
    assert slot_distance(results, twin["slots"]) <= 10 * CASES[name].tolerance
    for result in results[1:]:
        for own, first in zip(result["weights"], results[0]["weights"], strict=True):
            np.testing.assert_array_equal(own, first)
        assert result["logs"] == results[0]["logs"]
