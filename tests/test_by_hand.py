"""A training loop by hand says what it does otherwise than one process, once and on rank 0."""

import pytest

from tests import by_hand_tasks as tasks


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("odd", [False, True])
def test_a_loop_by_hand_says_what_is_not_one_processs(odd, in_function, ranks):
    first, second = ranks(2).run(tasks.say, odd=odd, in_function=in_function)
    assert second == []
    assert len(first) == (2 if odd else 0)
    words = ("normalizes each rank's rows by themselves", "gradients of looked-up rows")
    assert all(each in said for each, said in zip(words, first, strict=False))
