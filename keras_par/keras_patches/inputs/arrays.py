"""Cuts arrays by their row numbers, so that a rank copies only its own rows, in the order of one process."""

import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from keras_par.keras_patches.inputs.row_parts import num_rows
from keras_par.keras_patches.inputs.shards import as_it_is, shard_of
from keras_par.plan.options import Remainder
from keras_par.plan.rows import num_wrapped, row_range

SAMPLED_ROWS = 64  # how many rows of an array are looked at to see whether the ranks have the same


def is_dense(inputs) -> bool:
    """True if every leaf of `inputs` is an array whose rows can be taken by their numbers."""
    sparse_or_ragged = (tf.SparseTensor, tf.RaggedTensor)
    return not any(
        isinstance(leaf, sparse_or_ragged) or type(leaf).__module__.startswith("scipy.sparse")
        for leaf in tree.flatten(inputs)
    )


def row_numbers(adapter: ArrayDataAdapter, shuffle_seed: int | None) -> tf.data.Dataset:
    """Batches of row numbers, shuffled by Keras's own adapter."""
    numbers = ArrayDataAdapter(np.arange(adapter._num_samples), batch_size=adapter.batch_size, shuffle=adapter._shuffle)
    with seeded(shuffle_seed):
        return numbers.get_tf_dataset()


def cut_arrays(
    adapter: ArrayDataAdapter, dataset: tf.data.Dataset, num_shards: int, shard_id: int, remainder: Remainder
) -> tf.data.Dataset:
    """The rows of `row_numbers`, cut first and looked up afterwards."""
    arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    arrays = tree.map_structure(lambda array: array if array is None else tf.convert_to_tensor(array), arrays)
    arrays = tree.lists_to_tuples(arrays)

    rest = adapter._num_samples % adapter.batch_size
    even = adapter.batch_size % num_shards == 0 and (rest == 0 or (remainder == "drop" and rest < num_shards))
    thin = remainder == "exact" and (adapter.batch_size < num_shards or 0 < rest < num_shards)

    @as_it_is
    def look_up(rows):
        total = num_rows(rows)
        if remainder == "drop":
            total = total // num_shards * num_shards
        elif remainder == "wrap":
            rows = tf.gather(rows, tf.range(num_wrapped(total, num_shards) * num_shards) % total)
            total = num_rows(rows)
        start, stop = row_range(total, num_shards, shard_id)
        rows = rows[start : tf.maximum(stop, start + 1) if thin else stop]
        if even:
            rows = tf.ensure_shape(rows, [adapter.batch_size // num_shards])
        batch = tree.map_structure(lambda array: array if array is None else tf.gather(array, rows), arrays)
        return shard_of(batch, stop - start, total, even, thin)

    if remainder == "drop" and 0 < rest < num_shards:
        dataset = dataset.take(adapter._num_samples // adapter.batch_size)
    options = tf.data.Options()
    # This pipeline has nothing to tune, and tf.data's tuning thread delays the end of short epochs.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.map(look_up, num_parallel_calls=2, deterministic=True).prefetch(4).with_options(options)


def checksum(inputs: Any) -> int:
    """A number that tells arrays apart by their shapes, dtypes and a sample of their rows."""
    total = 0
    for leaf in tree.flatten(inputs):
        if leaf is None:
            continue
        step = max(1, leaf.shape[0] // SAMPLED_ROWS)
        sample = np.asarray(leaf.iloc[::step] if hasattr(leaf, "iloc") else leaf[::step])
        about = f"{tuple(leaf.shape)} {sample.dtype}".encode()
        content = repr(sample.tolist()).encode() if sample.dtype.hasobject else np.ascontiguousarray(sample).tobytes()
        total = zlib.crc32(content, zlib.crc32(about, total))
    return total


class seeded:  # noqa: N801 - reads as a statement
    """Sets TensorFlow's global seed for a block, so that a shuffle built in it is the same on every rank."""

    def __init__(self, seed: int | None):
        self._seed = seed

    def __enter__(self):
        if self._seed is not None:
            self._before = global_seed()
            tf.random.set_seed(self._seed)

    def __exit__(self, *error):
        if self._seed is not None:
            tf.random.set_seed(self._before)


def global_seed() -> int:
    """TensorFlow's global seed in this process; a fixed number if none was set."""
    return int(tf.compat.v1.get_seed(1)[0])
