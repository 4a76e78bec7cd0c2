"""Losses that a trace of an own step tells to be Keras's need no look at a batch; any others are looked at, once."""

import pytest

from tests import known_losses_tasks as tasks
from tests.compare import relative_distance

KNOWN = ("computed", "an_object", "several", "one_of_whole_batches")
LOOKED_AT = ("regularized", "a_sum", "a_sum_of_keras_s", "a_mean")


@pytest.mark.parametrize("kind", [*KNOWN, *LOOKED_AT])
def test_a_batch_is_looked_at_where_losses_are_not_known(kind, ranks, plain, exactness):
    [theirs] = plain.run(tasks.train, kind=kind, distributed=False)
    first, second = ranks(2).run(tasks.train, kind=kind, distributed=True)
    assert (first["looks"], second["looks"]) == (int(kind in LOOKED_AT), 0)
    assert first["said"] == []
    exactness(relative_distance(first["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("kind", ["computed", "a_sum", "a_branch"])
def test_a_look_leaves_the_functions_that_a_step_calls_alone(kind, ranks, plain, exactness):
    """They are kept when they are traced, so that the step would run what the look has made of them."""
    [theirs] = plain.run(tasks.train, kind=kind, distributed=False, in_function=True)
    for ours in ranks(2).run(tasks.train, kind=kind, distributed=True, in_function=True):
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("kind", ["partly_a_sum", "a_square", "a_product", "a_share"])
def test_what_is_made_of_keras_s_losses_but_is_no_sum_of_them_is_told(kind, ranks):
    first, _ = ranks(2).run(tasks.train, kind=kind, distributed=True)
    assert first["looks"] == 1 and len(first["said"]) == 1
    assert "neither a mean nor a sum over rows" in first["said"][0]
