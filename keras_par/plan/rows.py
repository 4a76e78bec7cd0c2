"""Says which rows of a batch or a data set each shard holds, because every other room asks exactly this."""


def row_range(num_rows, num_shards, shard_id):
    """The contiguous rows [start, stop) of a batch of `num_rows` that shard `shard_id` of `num_shards` holds.

    The ranges cover the batch in order, without gaps, and their lengths differ by at most one; with fewer rows
    than shards some are empty. Works on ints and on integer tensors alike.
    """
    return num_rows * shard_id // num_shards, num_rows * (shard_id + 1) // num_shards


def num_wrapped(num_rows: int, num_shards: int) -> int:
    """Rows each shard gets when short shards wrap round: ceil(num_rows / num_shards)."""
    return -(-num_rows // num_shards)


def strided_rows(num_rows: int, num_shards: int, shard_id: int, remainder: str) -> list[int]:
    """Row numbers of a strided shard: shard_id, shard_id + num_shards, ...

    Args:
        num_rows: rows in the whole data set, at least 1.
        num_shards: number of shards.
        shard_id: which shard, 0 <= shard_id < num_shards.
        remainder: "wrap" gives every shard ceil(num_rows / num_shards) rows, a short one going on from row 0
            (MindSpore's rule); "drop" gives every shard floor(num_rows / num_shards) rows.
    """
    count = num_wrapped(num_rows, num_shards) if remainder == "wrap" else num_rows // num_shards
    return [(shard_id + i * num_shards) % num_rows for i in range(count)]
