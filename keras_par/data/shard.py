"""Gives each rank its own strided share: of any input that `fit` takes, or of row numbers in random order."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_par.keras_patches.inputs.kinds import shard_of_data
from keras_par.keras_patches.inputs.own_shares import Sharding, mark
from keras_par.keras_patches.variables.layouts import data_place
from keras_par.plan.options import Remainder
from keras_par.plan.rows import permutation


def shard(data: Any, num_shards: int | None = None, shard_id: int | None = None, remainder: Remainder = "exact") -> Any:
    """Elements shard_id, shard_id + num_shards, ... of `data`; `fit` takes the result as this rank's own.

    Example:
        ```python
        kp.init()
        rows = kp.data.shard(tf.data.Dataset.range(5))
        [int(number) for number in rows]  # -> [0, 2, 4] on rank 0, [1, 3] on rank 1
        data = rows.map(lambda number: (tf.one_hot(number, 5), number)).batch(32)  # for fit, 32 rows on each rank
        ```

    | data | an element is | returns |
    |---|---|---|
    | tf.data.Dataset | what it yields | a dataset; batch it afterwards with the batch size of one rank |
    | list of names of files | a name | a dataset of names |
    | array, DataFrame, dict or tuple of them | a row | a dataset of rows; shuffle and batch it afterwards |
    | keras.utils.PyDataset | a batch | a PyDataset, which loads its own batches only |
    | torch DataLoader | a batch | a DataLoader, which loads its own batches only |
    | generator | what it yields | a generator, which runs through all and gives its own |

    Shard a tf.data.Dataset before it parses, decodes or maps, so that no rank does this for other ranks' rows, and
    shuffle before it only with a seed that all ranks share. Where there are at least as many files as ranks, shard
    the list of files, so that a rank does not even read other ranks' rows:
    `tf.data.TFRecordDataset(kp.data.shard(paths))`.

    Args:
        data: one of the kinds above, the same on every rank.
        num_shards: number of shards, by default the number of ranks; under a `kp.ModelParallel` that is active,
            the length of its batch axis.
        shard_id: which shard, by default this rank's place among these.
        remainder: what happens when `num_shards` does not divide the length n. "exact": each element is in one
            shard, and lengths differ by at most one; `fit` weighs them right, but a loop of your own would wait for
            ranks that have ended. "wrap": every shard has ceil(n / num_shards) elements, a short one going on from
            the first element. "drop": every shard has floor(n / num_shards).

    Returns:
        This rank's share, of the kind that the table tells.

    Raises:
        ValueError: an argument is out of range, the kind of data is not known here, or its length is not known and
            `remainder` is not "exact".

    Costs no collective.
    """
    sharding = sharding_of(num_shards, shard_id, remainder)
    if wrong := sharding.complaint:
        raise ValueError(f"keras-par: data.shard{wrong}")
    return shard_of_data(data, sharding)


def sharding_of(num_shards: int | None, shard_id: int | None, remainder: Remainder) -> Sharding:
    """In place of None the number of ranks that have other rows, and which of them this is; a fault is its complaint's.

    Raises:
        RuntimeError: kp.init() was not called, and one is None.
    """
    if num_shards is None or shard_id is None:
        num_places, place = data_place()
        num_shards = num_places if num_shards is None else num_shards
        shard_id = place if shard_id is None else shard_id
    return Sharding(num_shards, shard_id, remainder)


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
