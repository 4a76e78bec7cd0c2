"""Says which rows of a batch, an epoch or files each shard holds, because every other room asks exactly this."""

from collections.abc import Sequence

import numpy as np


def row_range(num_rows, num_shards, shard_id):
    """The contiguous rows [start, stop) of a batch of `num_rows` that shard `shard_id` of `num_shards` holds.

    The ranges cover the batch in order, without gaps, and their lengths differ by at most one; with fewer rows
    than shards some are empty. Works on ints and on integer tensors alike.
    """
    return num_rows * shard_id // num_shards, num_rows * (shard_id + 1) // num_shards


def num_wrapped(num_rows: int, num_shards: int) -> int:
    """Rows each shard gets when short shards wrap round: ceil(num_rows / num_shards)."""
    return -(-num_rows // num_shards)


def shard_size(num_rows: int, num_shards: int, shard_id: int, remainder: str) -> int:
    """Rows of a strided shard: "exact" as many as there are, "wrap" ceil(n / num_shards), "drop" floor."""
    if remainder == "wrap":
        return num_wrapped(num_rows, num_shards) if num_rows else 0
    if remainder == "drop":
        return num_rows // num_shards
    return len(range(shard_id, num_rows, num_shards))


def own_spans(num_rows: int, num_shards: int, shard_id: int, remainder: str) -> list[tuple[int, int]]:
    """The ranges [start, stop) of `num_rows` rows that shard `shard_id` of `num_shards` reads; at most two.

    They are those of tfds.even_splits; a shard that must wrap, see `shard_size`, reads its own first row again,
    or, if it has none, one of another shard's.
    """
    even = "drop" if remainder == "drop" else "exact"
    length = shard_size(num_rows, num_shards, shard_id, even)
    start = sum(shard_size(num_rows, num_shards, before, even) for before in range(shard_id))
    spans = [(start, start + length)] if length else []
    if length < shard_size(num_rows, num_shards, shard_id, remainder):
        again = start if length else shard_id % num_rows
        spans.append((again, again + 1))
    return spans


def pieces(lengths: Sequence[int], start: int, stop: int) -> list[tuple[int, int, int]]:
    """Where the rows [start, stop) of parts one behind another lie: (part, start there, stop there) in order."""
    found, begin = [], 0
    for part, length in enumerate(lengths):
        low, high = max(start - begin, 0), min(stop - begin, length)
        if low < high:
            found.append((part, low, high))
        begin += length
    return found


def permutation(num_rows: int, seed: int, epoch: int) -> np.ndarray:
    """The numbers 0 to num_rows - 1 (int64) in a random order, a pure function of the arguments.

    The order sorts draws of Philox by size. Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
    2011) and its seeding stay the same in all versions of NumPy, by NEP 19; `Generator.permutation` need not.
    """
    draws = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(num_rows)
    return np.argsort(draws, kind="stable").astype(np.int64, copy=False)


def stride(order: np.ndarray, num_shards: int, shard_id: int, remainder: str) -> np.ndarray:
    """Elements shard_id, shard_id + num_shards, ... of `order`; a shard that wraps goes on from the first element.

    The rule of torch.utils.data.DistributedSampler, with which batches of b on all shards are, taken together,
    batches of b * num_shards of `order`.
    """
    length = shard_size(len(order), num_shards, shard_id, remainder)
    return order[(shard_id + num_shards * np.arange(length, dtype=np.int64)) % len(order)]
