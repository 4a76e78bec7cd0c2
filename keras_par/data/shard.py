"""Gives each rank its own strided share of any input that `fit` takes."""

import itertools
import logging
import os
import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_par.comm import world
from keras_par.data.arguments import complaint, place_of
from keras_par.keras_patches.inputs.own_shares import mark
from keras_par.plan.options import Remainder
from keras_par.plan.rows import shard_size

logger = logging.getLogger("keras_par")


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
    num_shards, shard_id = place_of(num_shards, shard_id)
    if wrong := complaint(num_shards, shard_id, remainder):
        raise ValueError(f"keras-par: data.shard{wrong}")
    if isinstance(data, types.GeneratorType):
        if remainder != "exact":
            raise ValueError(unknown_length(remainder))
        return mark(row for row in itertools.islice(data, shard_id, None, num_shards))
    if isinstance(data, keras.utils.PyDataset):
        return shard_py_dataset(data, num_shards, shard_id, remainder)
    if is_data_loader(data):
        return shard_data_loader(data, num_shards, shard_id, remainder)
    if is_list_of_files(data):
        data = tf.data.Dataset.from_tensor_slices([os.fspath(name) for name in data])
    if isinstance(data, tf.data.Dataset):
        return shard_dataset(data, num_shards, shard_id, remainder)
    return shard_arrays(data, num_shards, shard_id, remainder)


def is_list_of_files(data: Any) -> bool:
    """True for names and paths, of which each is an element."""
    is_list = isinstance(data, (list, tuple)) and bool(data)
    return is_list and all(isinstance(name, (str, bytes, os.PathLike)) for name in data)


def unknown_length(remainder: str) -> str:
    return (
        f"keras-par: data.shard(remainder={remainder!r}) must know how long the data is, to give all ranks as many "
        "elements: use remainder='exact', or for a tf.data.Dataset add "
        ".apply(tf.data.experimental.assert_cardinality(n)) before it."
    )


def numbers_of_shard(length: int, num_shards: int, shard_id: int, remainder: Remainder) -> np.ndarray:
    """Which of `length` elements a shard has, in order; says on rank 0 what is read twice or left out."""
    say_remainder(length, num_shards, remainder)
    size = shard_size(length, num_shards, shard_id, remainder)
    return (shard_id + num_shards * np.arange(size)) % max(length, 1)


def say_remainder(length: int, num_shards: int, remainder: Remainder) -> None:
    """Logs on rank 0 how many of `length` elements are read twice or left out."""
    rest = length % num_shards
    if not rest or remainder == "exact" or (world.is_started() and world.current().rank != 0):
        return
    what = f"{num_shards - rest} are read twice" if remainder == "wrap" else f"{rest} are left out"
    logger.warning(
        "keras-par: data.shard: of %d elements over %d shards %s (remainder=%r)", length, num_shards, what, remainder
    )


def shard_dataset(dataset: tf.data.Dataset, num_shards: int, shard_id: int, remainder: Remainder) -> tf.data.Dataset:
    """Elements of a dataset; works on infinite ones, and for "exact" on those of unknown length."""
    length = int(dataset.cardinality())
    share = dataset.shard(num_shards, shard_id)
    if remainder == "exact" or length == tf.data.INFINITE_CARDINALITY:
        return mark(share)
    if length == tf.data.UNKNOWN_CARDINALITY:
        raise ValueError(unknown_length(remainder))
    say_remainder(length, num_shards, remainder)
    if remainder == "drop":
        return mark(share.take(length // num_shards))
    size = shard_size(length, num_shards, shard_id, remainder)
    # Every rank reads the elements that are read again, also those it does not take: else a shuffle before this, which
    # takes a new seed each time it is read, would soon give the ranks different orders.
    again = dataset.repeat().take(-length % num_shards).enumerate(length)
    own = again.filter(lambda number, *_: number % num_shards == shard_id).map(lambda _, element: element)
    return mark(share.concatenate(own).apply(tf.data.experimental.assert_cardinality(size)))


def shard_arrays(arrays: Any, num_shards: int, shard_id: int, remainder: Remainder) -> tf.data.Dataset:
    """Rows of an array, of a DataFrame, or of each array in a nest."""
    leaves = keras.tree.flatten(arrays)
    lengths = {len(leaf) for leaf in leaves if getattr(leaf, "shape", None)}
    if len(lengths) != 1 or not all(getattr(leaf, "shape", None) for leaf in leaves):
        raise ValueError(
            f"keras-par: data.shard takes arrays of equally many rows, names of files, a tf.data.Dataset, a "
            f"PyDataset, a DataLoader or a generator, not a {type(arrays).__name__} of other things or of arrays of "
            f"lengths {sorted(lengths)}."
        )
    numbers = numbers_of_shard(lengths.pop(), num_shards, shard_id, remainder)

    def rows(leaf):
        if not hasattr(leaf, "iloc"):
            return np.asarray(leaf)[numbers]
        own = leaf.iloc[numbers].to_numpy()
        return own if own.ndim > 1 else own[:, np.newaxis]  # a Series is one column, as Keras has it

    return mark(tf.data.Dataset.from_tensor_slices(keras.tree.map_structure(rows, arrays)))


class Dealt(keras.utils.PyDataset):
    """Some of another PyDataset's batches."""

    def __init__(self, inner: keras.utils.PyDataset, num_shards: int, shard_id: int, remainder: Remainder):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self._inner, self._num_shards, self._shard_id = inner, num_shards, shard_id
        self._remainder: Remainder = remainder

    @property
    def num_batches(self):
        length = self._inner.num_batches
        return None if length is None else shard_size(length, self._num_shards, self._shard_id, self._remainder)

    def __getitem__(self, index):
        number = self._shard_id + self._num_shards * index
        length = self._inner.num_batches
        return self._inner[number if length is None else number % length]

    def on_epoch_begin(self):
        self._inner.on_epoch_begin()

    def on_epoch_end(self):
        self._inner.on_epoch_end()


def shard_py_dataset(
    data: keras.utils.PyDataset, num_shards: int, shard_id: int, remainder: Remainder
) -> keras.utils.PyDataset:
    """Batches of a PyDataset, dealt out whole."""
    if data.num_batches is not None:
        say_remainder(data.num_batches, num_shards, remainder)
    return mark(Dealt(data, num_shards, shard_id, remainder))


def is_data_loader(data: Any) -> bool:
    """True for torch's DataLoader, found out without importing torch."""
    return any(
        kind.__name__ == "DataLoader" and kind.__module__.startswith("torch.utils.data") for kind in type(data).__mro__
    )


class DealtBatches:
    """Some of the batches of row numbers that a torch batch sampler draws."""

    def __init__(self, batches: Any, num_shards: int, shard_id: int, remainder: Remainder):
        self._batches, self._num_shards, self._shard_id = batches, num_shards, shard_id
        self._remainder: Remainder = remainder

    def __len__(self) -> int:
        return shard_size(len(self._batches), self._num_shards, self._shard_id, self._remainder)

    def __iter__(self):
        drawn = list(self._batches)  # row numbers only; "wrap" needs the first ones again
        for index in range(len(self)):
            yield drawn[(self._shard_id + self._num_shards * index) % len(drawn)]


def shard_data_loader(loader: Any, num_shards: int, shard_id: int, remainder: Remainder) -> Any:
    """Batches of a map-style torch DataLoader, dealt out whole. Its sampler must be seeded alike on all ranks.

    Raises:
        ValueError: the loader does not batch rows by their numbers.
    """
    if loader.batch_sampler is None or not hasattr(loader.dataset, "__len__"):
        raise ValueError(
            "keras-par: data.shard needs a DataLoader that makes batches of rows by their numbers (a map-style data "
            "set and a batch_size): shard an iterable-style data set within itself, by kp.rank() and kp.size()."
        )
    say_remainder(len(loader.batch_sampler), num_shards, remainder)
    batches = DealtBatches(loader.batch_sampler, num_shards, shard_id, remainder)
    return mark(
        type(loader)(
            loader.dataset,
            batch_sampler=batches,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
        )
    )
