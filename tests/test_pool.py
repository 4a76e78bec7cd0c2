"""A pool of ranks stays usable when its job is renewed, because fixtures hold on to the pool."""

import os

import pytest

from tests.ranks.pool import RankPool


def process_id() -> int:
    return os.getpid()


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
