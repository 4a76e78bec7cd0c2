"""Cuts rows that lie one behind another, in files or splits, so that a rank's rows lie in as few of them as can be."""

from collections.abc import Sequence

from keras_par.plan.rows import shard_size


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
