"""Deals out row numbers in a new shared random order each epoch, for data that is looked up by number."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from keras_par.data.shard import sharding_of
from keras_par.keras_patches.inputs.own_shares import mark
from keras_par.plan.options import Remainder
from keras_par.plan.rows import permutation


class DistributedSampler:
    """The row numbers of this rank in an epoch, as torch.utils.data.DistributedSampler deals them out.

    Example:
        ```python
        kp.init()
        x, y = np.ones((100, 8), "float32"), np.ones((100, 1), "float32")
        sampler = kp.data.DistributedSampler(len(x))
        data = sampler.dataset().batch(32).map(lambda rows: (tf.gather(x, rows), tf.gather(y, rows)))  # for fit
        len(sampler)  # -> 50
        ```

    In each epoch all ranks share one order of the rows, and rank r of N takes its positions r, r + N, ... So batches
    of b rows on N ranks are, taken together, batches of b * N rows of that order, whatever N is. The order is a
    function of `seed` and the epoch's number alone: a run resumed by `set_epoch` gets the orders it would have had.

    Args:
        num_rows: number of rows in the whole data set. Like `seed`, the same on all ranks.
        num_shards: number of shards, by default the number of ranks; under a `kp.ModelParallel` that is active,
            the length of its batch axis.
        shard_id: which shard, by default this rank's place among these.
        shuffle: False for the rows in their own order.
        seed: what the orders are drawn from, a number of at least 0.
        remainder: what happens when `num_shards` does not divide n = `num_rows`. "wrap" gives every shard
            ceil(n / num_shards) rows, a short one going on from the first row of the order; "drop" gives every shard
            floor(n / num_shards), leaving out the last rows of the order; "exact" gives every row to one shard, the
            first n % num_shards shards having one more than the others.

    Raises:
        ValueError: an argument is out of range.
        RuntimeError: kp.init() was not called, while `num_shards` or `shard_id` is left out.

    Costs no collective.
    """

    def __init__(
        self,
        num_rows: int,
        num_shards: int | None = None,
        shard_id: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        remainder: Remainder = "wrap",
    ):
        self.num_rows = num_rows
        self._sharding = sharding_of(num_shards, shard_id, remainder)
        self.num_shards, self.shard_id, self.remainder = self._sharding
        self.shuffle, self.seed = shuffle, seed
        self.epoch = 0
        if num_rows < 1:
            raise ValueError(f"keras-par: data.DistributedSampler(num_rows={num_rows}) needs at least one row.")
        if seed < 0:
            raise ValueError(f"keras-par: data.DistributedSampler: seed={seed} must not be negative.")
        if wrong := self._sharding.complaint:
            raise ValueError(f"keras-par: data.DistributedSampler{wrong}")

    def __len__(self) -> int:
        """How many rows this rank has in an epoch."""
        return self._sharding.size(self.num_rows)

    def __iter__(self) -> Iterator[int]:
        """This rank's row numbers in the epoch that was set; as in torch, the next iteration gives the same."""
        return iter(self._rows().tolist())

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch is read next, from 0: where a loop of your own goes on, the number of epochs it has done.

        `kp.callbacks.Resume` counts the epochs of `dataset()` itself, so do not call this beside it.

        Raises:
            ValueError: `epoch` is negative.
        """
        if epoch < 0:
            raise ValueError(f"keras-par: data.DistributedSampler.set_epoch({epoch}) must not be negative.")
        self.epoch = int(epoch)

    def dataset(self) -> tf.data.Dataset:
        """This rank's row numbers (scalars, int64), each reading from the start being the next epoch.

        An epoch begins when its first number is read, so that iterators which are made but never read skip none.
        Batch it with the batch size of one rank; `fit` takes it as this rank's own, see `kp.data.shard`.
        """

        def one_epoch(_):
            rows = tf.numpy_function(self._begin, [], tf.int64)
            return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(rows, [len(self)]))

        rows = tf.data.Dataset.from_tensors(0).flat_map(one_epoch)
        return mark(rows.apply(tf.data.experimental.assert_cardinality(len(self))))

    def _begin(self) -> np.ndarray:
        rows = self._rows()
        self.epoch += 1
        return rows

    def _rows(self) -> np.ndarray:
        own = self._sharding.numbers(self.num_rows)
        return permutation(self.num_rows, self.seed, self.epoch)[own] if self.shuffle else own
