"""Arrays as an input, and what stands in their place, of which a rank reads its own rows only, in Keras's order."""

import contextlib
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from keras_par.keras_patches.inputs.input import Input
from keras_par.keras_patches.inputs.own_shares import Sharding, mark
from keras_par.keras_patches.inputs.shards import EvenShard, Shard, ThinShard, as_it_is, cut
from keras_par.plan.options import Remainder

SAMPLED_ROWS = 64  # how many rows of an array are looked at to see whether the ranks have the same


class RowReader:
    """Rows that are read when a batch needs them; `fit` takes it in place of an array, for x, y or sample_weight.

    Example:
        ```python
        kp.init()

        class Squares(kp.data.RowReader):  # read from files, it would be np.stack([np.load(paths[i]) for i in numbers])
            shape, dtype = (100, 1), "int64"

            def read(self, numbers):
                return np.square(numbers)[:, np.newaxis]

        x = Squares()  # for fit
        int(np.asarray(x).sum())  # -> 328350
        ```

    A subclass sets `shape`, rows first, and `dtype`, and defines `read`. Training on it is training on the array of all
    its rows: `fit` shuffles numbers of rows, and each rank reads only its own rows of a batch, besides the first and
    the last one, by which the ranks see at the beginning that all have the same. `validation_split`, `class_weight`,
    and Keras without keras-par read all rows.

    Raises:
        NotImplementedError: a subclass does not define `read`.

    Costs no collective.
    """

    shape: tuple[int, ...]
    dtype: Any
    in_memory = False  # True if all rows are there, to be made a tensor

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, in their order; a number may come twice. Called by one thread at a time."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(np.arange(len(self))), dtype)


class Array(RowReader):
    """An array or a tensor of any library."""

    def __init__(self, array: Any):
        self.array, self.shape, self.in_memory = array, tuple(array.shape), True
        self.dtype = getattr(array, "dtype", None)  # a DataFrame has none

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(self.array)[numbers]


class Frame(Array):
    """A DataFrame of pandas, or a Series, which is one column, as Keras has it."""

    def read(self, numbers: np.ndarray) -> np.ndarray:
        own = self.array.iloc[numbers].to_numpy()
        return own if own.ndim > 1 else own[:, np.newaxis]


class Hdf5Dataset(Array):
    """A dataset of an HDF5 file, which is read in the file's order; texts are read at once."""

    def __init__(self, array: Any):
        super().__init__(array)
        self.in_memory = self.dtype.hasobject

    def read(self, numbers: np.ndarray) -> np.ndarray:
        in_order, places = np.unique(numbers, return_inverse=True)
        return self.array[in_order][places]


READERS: dict[str, type[Array]] = {"h5py.Dataset": Hdf5Dataset, "pandas.DataFrame": Frame, "pandas.Series": Frame}


def reader_of(leaf: Any) -> RowReader:
    """What reads the rows of an array, of what is registered in `READERS` by package and class, or of a reader."""
    if isinstance(leaf, RowReader):
        return leaf
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(leaf).__mro__)
    return next((READERS[name] for name in names if name in READERS), Array)(leaf)


class SparseArrayInput(Input):
    """Arrays of which some are sparse or ragged: batches as Keras cuts them."""

    adapter_type = ArrayDataAdapter
    advice = "make or load the same arrays on every rank"

    def _read(self, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        with seeded(shuffle_seed):
            return super()._read(shuffle_seed, order)

    def dataset(self, num_shards: int, shard_id: int, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        dataset = super().dataset(num_shards, shard_id, shuffle_seed, order)
        self.unread = tf.data.Dataset.range(0)  # arrays are shuffled only when they are read
        return dataset


class ArrayInput(SparseArrayInput):
    """Arrays and other readers of rows, of which each rank takes its rows only."""

    def __init__(self, adapter: Any, given: Any, auto_shard: bool = True, remainder: Remainder = "exact"):
        super().__init__(adapter, given, auto_shard, remainder)
        self.kind = f"{self.kind} of dense arrays"
        self.num_batches = adapter.num_batches

    @classmethod
    def reads(cls, adapter: Any) -> bool:
        """True if every leaf is an array whose rows can be taken by their numbers."""
        sparse_or_ragged = (tf.SparseTensor, tf.RaggedTensor)
        return super().reads(adapter) and not any(
            isinstance(leaf, sparse_or_ragged) or type(leaf).__module__.startswith("scipy.sparse")
            for leaf in tree.flatten(adapter._inputs)
        )

    @staticmethod
    def takes(data: Any) -> bool:
        return True

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> tf.data.Dataset:
        """Rows of an array, of a DataFrame, or of each array in a nest."""
        leaves = tree.flatten(data)
        lengths = {len(leaf) for leaf in leaves if getattr(leaf, "shape", None)}
        if len(lengths) != 1 or not all(getattr(leaf, "shape", None) for leaf in leaves):
            raise ValueError(
                f"keras-par: data.shard takes arrays of equally many rows, names of files, a tf.data.Dataset, a "
                f"PyDataset, a DataLoader or a generator, not a {type(data).__name__} of other things or of arrays of "
                f"lengths {sorted(lengths)}."
            )
        [length] = lengths
        sharding.say_remainder(length)
        numbers = sharding.numbers(length)
        rows = tree.map_structure(lambda leaf: reader_of(leaf).read(numbers), data)
        return mark(tf.data.Dataset.from_tensor_slices(rows))

    def checksum(self) -> int | None:
        return None if self.is_sharded else checksum(self.adapter._inputs)

    def _read(self, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        """Batches of row numbers, shuffled by Keras's own adapter."""
        if self.is_sharded:
            return super()._read(shuffle_seed, order)
        adapter = self.adapter
        numbers = np.arange(adapter._num_samples)
        with seeded(shuffle_seed):
            return ArrayDataAdapter(numbers, batch_size=adapter.batch_size, shuffle=adapter._shuffle).get_tf_dataset()

    def _cut(self, dataset: tf.data.Dataset, num_shards: int, shard_id: int) -> tf.data.Dataset:
        """The numbers cut first, and rows looked up afterwards."""
        num_samples, batch_size, remainder = self.adapter._num_samples, self.adapter.batch_size, self.remainder
        rest = num_samples % batch_size
        even = batch_size % num_shards == 0 and (rest == 0 or (remainder == "drop" and rest < num_shards))
        thin = remainder == "exact" and (batch_size < num_shards or 0 < rest < num_shards)
        kind = EvenShard if even else ThinShard if thin else Shard
        if remainder == "drop" and 0 < rest < num_shards:
            self.num_batches = num_samples // batch_size
            dataset = dataset.take(self.num_batches)
        look_ups = tree.lists_to_tuples(tree.map_structure(look_up_of, self.adapter._inputs))

        @as_it_is
        def look_up(rows):
            shard = cut(rows, num_shards, shard_id, remainder, kind=kind)
            own = tf.ensure_shape(shard.batch, [batch_size // num_shards]) if kind is EvenShard else shard.batch
            return shard._replace(batch=tree.map_structure(lambda each: None if each is None else each(own), look_ups))

        options = tf.data.Options()
        # This pipeline has nothing to tune, and tf.data's tuning thread delays the end of short epochs.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        in_memory = all(leaf is None or reader_of(leaf).in_memory for leaf in tree.flatten(self.adapter._inputs))
        shards = dataset.map(look_up, num_parallel_calls=2 if in_memory else 1, deterministic=True)
        return shards.prefetch(4).with_options(options)


def look_up_of(leaf: Any) -> Callable[[tf.Tensor], tf.Tensor] | None:
    """A function that gives rows by their numbers, in the type that Keras gives such an array."""
    if leaf is None:
        return None
    reader = reader_of(leaf)
    array = leaf if reader.in_memory else np.zeros([1, *reader.shape[1:]], reader.dtype)
    tensor = tf.convert_to_tensor(array_slicing.convert_to_sliceable(array, target_backend="tensorflow"))
    if reader.in_memory:
        return lambda rows: tf.gather(tensor, rows)
    dtype = tensor.dtype.as_numpy_dtype

    one_at_a_time = vars(reader).setdefault("_keras_par_lock", threading.Lock())

    def read(numbers):
        with one_at_a_time:  # several datasets may read ahead of it, each in a thread of its own
            found = np.asarray(reader.read(numbers), dtype)
        if found.shape != (len(numbers), *reader.shape[1:]):
            raise ValueError(
                f"keras-par: {type(reader).__name__}.read gives rows of shape {found.shape} for {len(numbers)} numbers "
                f"of rows of shape {reader.shape[1:]}: return one row for each number, in their order."
            )
        return found

    def read_rows(rows):
        return tf.ensure_shape(tf.numpy_function(read, [rows], tensor.dtype), [*rows.shape, *tensor.shape[1:]])

    return read_rows


def checksum(inputs: Any) -> int:
    """A number that tells arrays apart by their shapes, dtypes and a sample of their rows."""
    total = 0
    for leaf in tree.flatten(inputs):
        if leaf is None:
            continue
        reader, length = reader_of(leaf), leaf.shape[0]
        places = np.arange(0, length, max(1, length // SAMPLED_ROWS)) if reader.in_memory else [0, length - 1]
        sample = reader.read(np.asarray(places))
        about = f"{tuple(leaf.shape)} {sample.dtype}".encode()
        content = repr(sample.tolist()).encode() if sample.dtype.hasobject else np.ascontiguousarray(sample).tobytes()
        total = zlib.crc32(content, zlib.crc32(about, total))
    return total


@contextlib.contextmanager
def seeded(seed: int | None):
    """Sets TensorFlow's global seed for a block, so that a shuffle built in it is the same on every rank."""
    before = global_seed()
    if seed is not None:
        tf.random.set_seed(seed)
    try:
        yield
    finally:
        if seed is not None:
            tf.random.set_seed(before)


def global_seed() -> int:
    """TensorFlow's global seed in this process; a fixed number if none was set."""
    return int(tf.compat.v1.get_seed(1)[0])
