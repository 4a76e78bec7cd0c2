"""Ranks that part are told and do not wait for each other, and so are threads that train at the same time."""

import pytest

from tests import parting_tasks as tasks
from tests.ranks.pool import Failure


def test_a_second_thread_is_refused_while_a_call_is_under_way(ranks):
    for size, said, differs in ranks(2).run(tasks.in_threads):
        assert size == 2 and not differs
        assert "predict of 'b' in thread 'other_0' cannot begin while fit of 'a' is under way in thread 'Main" in said


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        (
            "strategies",
            "rank 0 has come to fit, evaluate, predict or saving and rank 1 to 'kp.ModelParallel()'",
        ),
        (
            "threads",
            "the ranks do not agree about predict: 'model and data of a thread' is ['a', ",
        ),
    ],
)
def test_ranks_that_part_are_told(which, sentence, ranks):
    results = ranks(2).attempt(tasks.misuse, which=which)
    assert len(results) == 2 and all(isinstance(result, Failure) for result in results), results
    assert results[0].message.startswith(f"keras-par: {sentence}"), results[0].traceback
    assert results[0].message == results[1].message
