"""Says in which order an epoch reads the rows and which of them each shard reads, so that all ranks agree unasked."""

import numpy as np

from keras_par.plan.rows import shard_size


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
