"""kp.data.shard against MindSpore's rule (row S2-cyclic), and training on what it returns."""

import pytest

from tests import tasks
from tests.compare import relative_distance
from tests.ranks.pool import together


def test_short_shards_wrap_round(ranks):
    [shards, *_] = ranks(2).run(tasks.shards, num_rows=10, num_shards=4, remainder="wrap")
    assert shards == [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


@pytest.mark.parametrize(("num_rows", "num_shards"), [(10, 4), (8, 4), (3, 4), (1, 3), (7, 1), (9, 5)])
def test_all_shards_are_equally_long_and_cover_the_data(num_rows, num_shards, ranks):
    [wrapped, *_] = ranks(2).run(tasks.shards, num_rows=num_rows, num_shards=num_shards, remainder="wrap")
    assert {len(shard) for shard in wrapped} == {-(-num_rows // num_shards)}
    assert set().union(*wrapped) == set(range(num_rows))
    [dropped, *_] = ranks(2).run(tasks.shards, num_rows=num_rows, num_shards=num_shards, remainder="drop")
    kept = [row for shard in dropped for row in shard]
    assert {len(shard) for shard in dropped} == {num_rows // num_shards}
    assert len(kept) == len(set(kept)) == num_rows // num_shards * num_shards


def test_fit_takes_a_shard_as_this_ranks_rows(ranks, plain, exactness):
    # Two strided shares in batches of 8 are batches of 16 in order; 72 rows leave 4 a rank for the last one.
    [twin], results = together(
        plain.begin(tasks.train_on, num_rows=72, batch_size=16), ranks(2).begin(tasks.sharded_by_user, num_rows=72)
    )
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


def test_data_that_ends_unannounced_ends_everywhere_with_the_shortest(ranks):
    assert ranks(2).run(tasks.unknown_and_unequal) == [8, 8]  # rank 1 has 32 rows: 4 batches, 2 epochs
