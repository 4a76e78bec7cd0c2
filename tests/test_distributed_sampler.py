"""kp.data.DistributedSampler: one order for all ranks, a new one each epoch, that trains as one process would."""

import warnings
from collections import Counter

import numpy as np
import pytest

from keras_par.plan.rows import permutation, shard_size, stride
from tests import sampler_tasks
from tests.compare import relative_distance
from tests.ranks.pool import together

SIZES = [(10, 4), (8, 4), (3, 4), (1, 3), (7, 1), (9, 5), (2, 7)]


def interleaved(shares):
    """The positions of all ranks in the order in which batches of one row a rank take them."""
    longest = max(map(len, shares))
    return [share[i] for i in range(longest) for share in shares if i < len(share)]


@pytest.mark.parametrize("size", [2, 3])
def test_the_ranks_share_one_order(size, ranks):
    shares = [epochs[0] for epochs in ranks(size).run(sampler_tasks.epochs, num_rows=24)]
    assert len(shares) == size
    assert len({tuple(share) for share in shares}) == size
    assert sorted(interleaved(shares)) == list(range(24))
    assert interleaved(shares) == permutation(24, 0, 0).tolist() != list(range(24))


@pytest.mark.parametrize("size", [2, 3])
def test_what_happens_to_the_remainder(size, ranks):
    order = permutation(23, 5, 2).tolist()
    options = {"num_rows": 23, "seed": 5, "first_epoch": 2}
    exact, wrapped, dropped = (
        [epochs[0] for epochs in ranks(size).run(sampler_tasks.epochs, remainder=remainder, **options)]
        for remainder in ("exact", "wrap", "drop")
    )
    assert len(exact) == len(wrapped) == len(dropped) == size
    assert interleaved(exact) == order
    assert max(map(len, exact)) - min(map(len, exact)) == 1
    assert interleaved(wrapped) == order + order[: -23 % size]
    assert interleaved(dropped) == order[: 23 // size * size]


def test_without_shuffling_the_rows_come_in_order(ranks):
    assert ranks(2).run(sampler_tasks.epochs, num_rows=7, shuffle=False, num_epochs=2) == [
        [[0, 2, 4, 6]] * 2,
        [[1, 3, 5, 0]] * 2,
    ]


def test_the_order_depends_on_seed_and_epoch_and_nothing_else(ranks):
    orders = {tuple(permutation(100, seed, epoch)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    first, again = (ranks(2).run(sampler_tasks.epochs, num_rows=50, num_epochs=4, seed=9) for _ in range(2))
    assert len(first) == 2 and first == again
    resumed = ranks(2).run(sampler_tasks.epochs, num_rows=50, num_epochs=2, first_epoch=2, seed=9)
    assert resumed == [epochs[2:] for epochs in first]
    for with_sampler, without in ranks(2).run(sampler_tasks.global_state):
        assert with_sampler == without


def test_an_order_stays_the_same_in_all_versions():
    assert permutation(8, 0, 0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert permutation(8, 0, 0).dtype == np.int64


def test_every_order_is_as_likely():
    counts = Counter(tuple(permutation(3, seed, epoch)) for seed in range(60) for epoch in range(20))
    assert len(counts) == 6
    assert max(abs(count - 200) for count in counts.values()) < 5 * 200**0.5


@pytest.mark.parametrize(("num_rows", "num_shards"), SIZES)
def test_lengths_and_padding_are_torchs(num_rows, num_shards):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.data import DistributedSampler

    for remainder in ("wrap", "drop"):
        for shard_id in range(num_shards):
            options = {"shuffle": False, "drop_last": remainder == "drop"}
            theirs = DistributedSampler(range(num_rows), num_shards, shard_id, **options)
            ours = stride(np.arange(num_rows), num_shards, shard_id, remainder)
            assert ours.tolist() == list(theirs)
            assert shard_size(num_rows, num_shards, shard_id, remainder) == len(ours) == len(theirs)


@pytest.mark.parametrize("size", [2, 3])
def test_each_reading_of_the_dataset_is_an_epoch(size, ranks):
    expected = ranks(size).run(sampler_tasks.epochs, num_rows=11, num_epochs=3)
    results = ranks(size).run(sampler_tasks.readings, num_rows=11, num_readings=3)
    assert len(results) == size
    for result, epochs in zip(results, expected, strict=True):
        assert result == {"rows": epochs, "policy": "OFF", "epoch": 3}
        assert len(set(map(tuple, epochs))) == 3


def test_set_epoch_sets_the_next_reading(ranks):
    expected = ranks(2).run(sampler_tasks.epochs, num_rows=11, num_epochs=2, first_epoch=5, remainder="exact")
    results = ranks(2).run(sampler_tasks.readings, num_rows=11, num_readings=2, first_epoch=5, remainder="exact")
    assert [len(result["rows"][0]) for result in results] == [6, 5]
    assert [result["rows"] for result in results] == expected


@pytest.mark.parametrize(("size", "batch_size"), [(1, 24), (2, 12), (3, 8)])
def test_fit_ends_where_one_process_ends_with_the_same_order(size, batch_size, ranks, plain, exactness):
    orders = [permutation(72, 3, epoch).tolist() for epoch in range(3)]
    [twin], results = together(
        plain.begin(sampler_tasks.train_in_order, orders=orders, num_rows=72, batch_size=24),
        ranks(size).begin(sampler_tasks.train, num_rows=72, num_epochs=3, batch_size=batch_size),
    )
    assert len(results) == size
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


def test_a_resumed_fit_reads_the_orders_that_follow(ranks, plain, exactness):
    orders = [permutation(72, 3, epoch).tolist() for epoch in (4, 5)]
    [twin], results = together(
        plain.begin(sampler_tasks.train_in_order, orders=orders, num_rows=72, batch_size=24),
        ranks(2).begin(sampler_tasks.train, num_rows=72, num_epochs=2, batch_size=12, first_epoch=4),
    )
    assert len(results) == 2
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"num_rows": 0}, "num_rows=0) needs at least one row"),
        ({"num_shards": 2, "shard_id": 2}, "num_shards=2, shard_id=2) needs 0 <= shard_id < num_shards"),
        ({"seed": -1}, "seed=-1 must not be negative"),
        ({"remainder": "pad"}, "remainder='pad') is unknown, use 'exact', 'wrap' or 'drop'"),
        ({}, "set_epoch(-1) must not be negative"),
    ],
)
def test_what_cannot_be_is_refused(options, what, ranks):
    sentences = ranks(2).run(sampler_tasks.refused, **options)
    assert len(sentences) == 2
    for sentence in sentences:
        assert sentence.startswith("keras-par: data.DistributedSampler")
        assert what in sentence
