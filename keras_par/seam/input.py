"""Turns what `fit` is given into this rank's rows of every global batch."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from keras_par.plan.rows import row_range

# What a dataset yields. A traced function takes two tuples of equal length for the same type, so each kind has another
# number of fields.


class Part(NamedTuple):
    """A batch of a data set that was sharded before `fit`; how many rows the others have is not known here."""

    batch: Any


class EvenShard(NamedTuple):
    """This rank's rows of a global batch of which every rank has as many, a number known while tracing."""

    batch: Any
    even: tf.Tensor


class Shard(NamedTuple):
    """This rank's rows of a global batch, with the row counts here and on all ranks."""

    batch: Any
    local: tf.Tensor
    total: tf.Tensor


class ThinShard(NamedTuple):
    """A Shard whose batch may have fewer rows than there are ranks.

    A rank that has none of them gets one row as a stand-in, while `local` says 0: layers need not cope with an
    empty batch, which some of TensorFlow's kernels get wrong, and what the row does is undone or weighted by 0.
    """

    batch: Any
    local: tf.Tensor
    total: tf.Tensor
    has_rows: tf.Tensor


KINDS = (Part, EvenShard, Shard, ThinShard)


def shard_of(batch: Any, local, total, even: bool, thin: bool) -> EvenShard | Shard | ThinShard:
    if even:
        return EvenShard(batch, tf.constant(True))
    local, total = tf.cast(local, tf.int64), tf.cast(total, tf.int64)
    return ThinShard(batch, local, total, local > 0) if thin else Shard(batch, local, total)


class Source:
    """A data adapter of Keras's, with what the ranks must agree on before they read from it.

    Args:
        adapter: made by Keras from the arguments of `fit`, without a distribution.
        auto_shard: False if the user says that the input is this rank's share already.

    Raises:
        ValueError: the input is of a kind that cannot be cut into rows.
    """

    def __init__(self, adapter: DataAdapter, auto_shard: bool = True):
        if not isinstance(adapter, (ArrayDataAdapter, TFDatasetAdapter)):
            raise ValueError(
                f"keras-par: fit under a strategy takes arrays and tf.data.Datasets, not what Keras reads by a "
                f"{type(adapter).__name__}: convert it, for a generator by tf.data.Dataset.from_generator."
            )
        self.adapter = adapter
        self.num_batches: int | None = adapter.num_batches
        self.is_infinite = False
        self.is_sharded = not auto_shard
        self.batch_size: int | None = adapter.batch_size
        if isinstance(adapter, TFDatasetAdapter):
            dataset = adapter.get_tf_dataset()
            self.is_infinite = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
            self.is_sharded = self.is_sharded or is_sharded(dataset)
            self.batch_size = None if has_scalars(dataset) else batch_size(dataset)

    @property
    def is_shared_dataset(self) -> bool:
        """True for a dataset that all ranks read alike, each taking its rows out of every batch."""
        return isinstance(self.adapter, TFDatasetAdapter) and not self.is_sharded

    @property
    def may_end_unannounced(self) -> bool:
        """True if only reading shows how many batches there are."""
        return self.num_batches is None and not self.is_infinite

    def complaint(self, num_ranks: int) -> str | None:
        """One sentence about why this input cannot be trained on by `num_ranks`, or None."""
        if isinstance(self.adapter, TFDatasetAdapter) and has_scalars(self.adapter.get_tf_dataset()):
            return "the dataset has scalar elements, so it is not batched: add .batch(global_batch_size) to it."
        if not self.is_sharded and self.batch_size is not None and self.batch_size < num_ranks:
            return (
                f"the global batch of {self.batch_size} rows is smaller than the {num_ranks} ranks: "
                "a batch in fit is the whole job's, so give it at least one row a rank."
            )
        return None

    def dataset(self, num_shards: int, shard_id: int, shuffle_seed: int | None) -> tf.data.Dataset:
        """A dataset of one of the three kinds of shards, or of `Part`s if the user has sharded the input.

        Args:
            num_shards: number of ranks.
            shard_id: this rank.
            shuffle_seed: TensorFlow's global seed by which arrays are shuffled, None for this process's own.
        """
        if isinstance(self.adapter, ArrayDataAdapter) and not self.is_sharded and is_dense(self.adapter._inputs):
            return cut_arrays(self.adapter, num_shards, shard_id, shuffle_seed)
        dataset = self.adapter.get_tf_dataset()
        if self.is_sharded:
            return dataset.map(lambda *element: Part(whole(dataset, element))).prefetch(2)
        return dataset.map(lambda *element: cut(whole(dataset, element), num_shards, shard_id)).prefetch(2)


def is_sharded(dataset: tf.data.Dataset) -> bool:
    """True if the dataset says that it is one rank's share, as `kp.data.shard` and tf.distribute's users do."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF


def has_scalars(dataset: tf.data.Dataset) -> bool:
    """True if a part of each element has no dims, so that it cannot be a batch."""
    shapes = [getattr(spec, "shape", None) for spec in tf.nest.flatten(dataset.element_spec)]
    return any(shape is not None and shape.rank == 0 for shape in shapes)


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """Rows of a full batch, None if the pipeline does not tell.

    Keras asks the same private function of TensorFlow in `Distribution.distribute_tf_dataset`.
    """
    from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

    size = int(compute_batch_size(dataset))
    return size if size > 0 else None


def is_dense(inputs) -> bool:
    """True if every leaf of `inputs` is an array whose rows can be taken by their numbers."""
    sparse_or_ragged = (tf.SparseTensor, tf.RaggedTensor)
    return not any(
        isinstance(leaf, sparse_or_ragged) or type(leaf).__module__.startswith("scipy.sparse")
        for leaf in tree.flatten(inputs)
    )


def whole(dataset: tf.data.Dataset, element: tuple) -> Any:
    """The element as the dataset's user sees it, from the arguments that `map` passes."""
    return element if isinstance(dataset.element_spec, tuple) else element[0]


def cut_arrays(adapter: ArrayDataAdapter, num_shards: int, shard_id: int, shuffle_seed: int | None) -> tf.data.Dataset:
    """Batches of row numbers, shuffled by Keras's own adapter, cut first and looked up afterwards.

    So a rank copies its own rows only, in the order in which one process would read them.
    """
    numbers = ArrayDataAdapter(np.arange(adapter._num_samples), batch_size=adapter.batch_size, shuffle=adapter._shuffle)
    with seeded(shuffle_seed):
        dataset = numbers.get_tf_dataset()
    arrays = array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")
    arrays = tree.map_structure(lambda array: array if array is None else tf.convert_to_tensor(array), arrays)
    arrays = tree.lists_to_tuples(arrays)

    rest = adapter._num_samples % adapter.batch_size
    even = rest == 0 and adapter.batch_size % num_shards == 0
    thin = 0 < rest < num_shards

    def look_up(rows):
        total = num_rows(rows)
        start, stop = row_range(total, num_shards, shard_id)
        rows = rows[start : tf.maximum(stop, start + 1)]
        if even:
            rows = tf.ensure_shape(rows, [adapter.batch_size // num_shards])
        batch = tree.map_structure(lambda array: array if array is None else tf.gather(array, rows), arrays)
        return shard_of(batch, stop - start, total, even, thin)

    options = tf.data.Options()
    # This pipeline has nothing to tune, and tf.data's tuning thread delays the end of short epochs.
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.map(look_up, num_parallel_calls=2, deterministic=True).prefetch(4).with_options(options)


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


def cut(batch: Any, num_shards: int, shard_id: int) -> EvenShard | Shard | ThinShard:
    """This rank's contiguous rows of a global batch, a nest of tensors (dense, ragged or sparse) and Nones."""
    first = first_leaf(batch)
    known = first.shape[0]
    total = known if known is not None else num_rows(first)
    start, stop = row_range(total, num_shards, shard_id)
    even = isinstance(first, tf.Tensor) and known is not None and known > 0 and known % num_shards == 0
    thin = known is None or known < num_shards
    end = tf.maximum(stop, start + 1) if thin else stop
    rows = tree.map_structure(lambda leaf: leaf if leaf is None else take(leaf, start, end), batch)
    return shard_of(rows, stop - start, total, even, thin)


def first_leaf(batch: Any):
    """The first part of a batch, whose rows are counted."""
    return next(leaf for leaf in tree.flatten(batch) if leaf is not None)


def num_rows(leaf) -> tf.Tensor:
    if isinstance(leaf, tf.RaggedTensor):
        return leaf.nrows()
    if isinstance(leaf, tf.SparseTensor):
        return leaf.dense_shape[0]
    return tf.shape(leaf, out_type=tf.int64)[0]


def take(leaf, start, stop):
    """Rows [start, stop) of a dense, ragged or sparse tensor, or of an array."""
    if isinstance(leaf, tf.SparseTensor):
        begin = tf.concat([[start], tf.zeros([leaf.shape.rank - 1], tf.int64)], 0)
        length = tf.concat([[stop - start], leaf.dense_shape[1:]], 0)
        return tf.sparse.slice(leaf, begin, length)
    return leaf[start:stop]
