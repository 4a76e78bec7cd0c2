"""The arithmetic of rows, buckets and fingerprints, without any rank."""

import numpy as np
import pytest

from keras_par.plan.buckets import fill_buckets
from keras_par.plan.fingerprint import canonical_names, first_difference
from keras_par.plan.layout import part_of, shard_of
from keras_par.plan.mesh import Mesh
from keras_par.plan.rows import row_range


@pytest.mark.parametrize("num_shards", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 64, 65])
def test_row_ranges_cover_a_batch_in_order_and_evenly(num_rows, num_shards):
    ranges = [row_range(num_rows, num_shards, shard_id) for shard_id in range(num_shards)]
    assert [row for start, stop in ranges for row in range(start, stop)] == list(range(num_rows))
    lengths = [stop - start for start, stop in ranges]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("num_parts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 64, 65])
def test_parts_of_a_dim_follow_each_other_and_the_first_are_longer(size, num_parts):
    parts = [part_of(size, num_parts, place) for place in range(num_parts)]
    assert [element for part in parts for element in range(size)[part]] == list(range(size))
    lengths = [part.stop - part.start for part in parts]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("shape", [(6, 4), (7, 5), (1, 3)])
def test_shards_of_all_ranks_are_the_whole(shape):
    mesh = Mesh((2, 3), ("first", "second"), tuple(range(6)))
    counts = np.zeros(shape, int)
    for rank in range(6):
        counts[shard_of(shape, ("second", "first"), mesh, rank)] += 1
    assert (counts == 1).all()


def test_buckets_take_the_last_first_and_keep_the_limit():
    sizes, kinds = [4, 4, 4, 100, 4], ["f", "f", "h", "f", "f"]
    buckets = fill_buckets(sizes, kinds, 8)
    assert sorted(index for bucket in buckets for index in bucket) == [0, 1, 2, 3, 4]
    assert buckets[0] == [4]
    for bucket in buckets:
        assert len({kinds[index] for index in bucket}) == 1
        assert sum(sizes[index] for index in bucket) <= 8 or len(bucket) == 1
    assert fill_buckets(sizes, ["f"] * 5, 10**6) == [[4, 3, 2, 1, 0]]
    assert fill_buckets([], [], 1) == []


def test_automatic_numbers_do_not_count_but_order_does():
    assert canonical_names(["dense_7/kernel", "dense_9/kernel"]) == canonical_names(["dense/kernel", "dense_1/kernel"])
    assert canonical_names(["a/kernel"]) != canonical_names(["b/kernel"])
    assert canonical_names(["dense/kernel", "dense/bias"]) != canonical_names(["dense/kernel", "dense_1/bias"])


def test_the_first_difference_is_named_with_its_ranks():
    same = [["dense#0/kernel#0", [2, 3], "float32"], ["dense#0/bias#0", [3], "float32"]]
    other = [same[0], ["dense#0/bias#0", [4], "float32"]]
    assert first_difference([same, same]) is None
    assert first_difference([same, same, other]) == (
        "variable 1 is 'dense/bias' (3,) float32 on rank 0 but 'dense/bias' (4,) float32 on rank 2"
    )
    assert first_difference([same, same[:1], same[:1]]) == (
        "variable 1 is 'dense/bias' (3,) float32 on rank 0 but missing on ranks 1, 2"
    )
