"""Groups gradients into buckets, so that one all-reduce carries many small tensors."""

from collections.abc import Sequence


def fill_buckets(num_bytes: Sequence[int], kinds: Sequence[object], limit: int) -> list[list[int]]:
    """Groups tensors, last first, into buckets of one kind and at most `limit` bytes each.

    The last gradients come first because the backward pass computes them first. A tensor larger than `limit`
    has a bucket of its own.

    Args:
        num_bytes: size of each tensor in bytes.
        kinds: what must be equal within a bucket (the dtype), one for each tensor.
        limit: largest size of a bucket in bytes, at least 1.

    Returns:
        The buckets, each a list of indices into the arguments; every index occurs exactly once.
    """
    buckets: list[list[int]] = []
    filling: dict[object, int] = {}  # kind -> the bucket that still takes tensors of it
    sizes: list[int] = []
    for index in reversed(range(len(num_bytes))):
        kind = kinds[index]
        bucket = filling.get(kind)
        if bucket is None or sizes[bucket] + num_bytes[index] > limit:
            bucket = filling[kind] = len(buckets)
            buckets.append([])
            sizes.append(0)
        buckets[bucket].append(index)
        sizes[bucket] += num_bytes[index]
    return buckets
