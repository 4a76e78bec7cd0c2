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


def shard_size(num_rows: int, num_shards: int, shard_id: int, remainder: str) -> int:
    """Rows of a strided shard: "exact" as many as there are, "wrap" ceil(n / num_shards), "drop" floor."""
    if remainder == "wrap":
        return num_wrapped(num_rows, num_shards) if num_rows else 0
    if remainder == "drop":
        return num_rows // num_shards
    return len(range(shard_id, num_rows, num_shards))
