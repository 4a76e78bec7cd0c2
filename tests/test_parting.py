"""Ranks that part are told and do not wait for each other; threads whose order differs between ranks find together."""

import numpy as np
import pytest

from tests import parting_tasks as tasks
from tests.ranks.pool import Failure, together


def test_calls_in_threads_are_those_of_one_process(ranks, plain):
    [alone], results = together(plain.begin(tasks.alone), ranks(2).begin(tasks.in_threads))
    for found in results:
        assert found.pop("size") == 2 and found.keys() == alone.keys()
        for name, expected in alone.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        (
            "strategies",
            "rank 0 has come to fit, evaluate, predict or saving and rank 1 to 'kp.ModelParallel()'",
        ),
        (
            "threads",
            "a thread has come to predict of 'b' but no thread to predict of 'a', which a thread of rank 0",
        ),
    ],
)
def test_ranks_that_part_are_told(which, sentence, ranks):
    results = ranks(2).attempt(tasks.misuse, seconds=60, which=which)
    assert len(results) == 2 and all(isinstance(result, Failure) for result in results), results
    assert results[0].message.startswith(f"keras-par: {sentence}"), results[0].traceback
    assert results[0].message == results[1].message
