"""A pool of ranks stays usable when its job is renewed, because fixtures hold on to the pool."""

import os

import pytest

from tests.ranks.pool import RankPool


def process_id() -> int:
    return os.getpid()


def has_optimizer_of_graphs() -> bool:
    import tensorflow as tf

    return not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]


@pytest.mark.parametrize("has_it", [False, pytest.param(True, marks=pytest.mark.grappler)])
def test_tests_that_are_marked_have_the_optimizer_of_graphs(has_it, plain):
    assert plain.run(has_optimizer_of_graphs) == [has_it]


@pytest.mark.parametrize(("kind", "size"), [("plain", 1), pytest.param("ranks", 2, marks=pytest.mark.long)])
def test_a_pool_goes_on_in_a_new_job(kind, size):
    ranks = RankPool(size, kind, renewed_after=2)
    try:
        first = ranks.run(process_id)
        ranks.renew()
        assert ranks.run(process_id) == first and len(set(first)) == size
        ranks.renew()
        second = ranks.run(process_id)
        assert not set(first) & set(second) and len(set(second)) == size
        assert ranks.num_tasks == 3
    finally:
        ranks.close()
    for pid in (*first, *second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
