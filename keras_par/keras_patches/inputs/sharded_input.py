"""Turns what `fit` is given into this rank's rows of every global batch."""

import contextlib
import random
from typing import Any

import tensorflow as tf
from keras.src.distribution import distribution_lib
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from keras_par.keras_patches.inputs.arrays import checksum, cut_arrays, is_dense, row_numbers, seeded
from keras_par.keras_patches.inputs.own_shares import is_marked
from keras_par.keras_patches.inputs.py_dataset import InOrder
from keras_par.keras_patches.inputs.row_parts import History, counting_part, has_dims, num_rows, targets_of
from keras_par.keras_patches.inputs.same_data import Digest
from keras_par.keras_patches.inputs.shards import Part, as_it_is, cut
from keras_par.keras_patches.table.keras_names import has
from keras_par.plan.options import Remainder

ADVICE = {
    "ArrayData": "make or load the same arrays on every rank",
    "GeneratorData": "seed the numbers that the generator draws alike on every rank, as np.random.default_rng(0) does",
    "PyDataset": "let its __getitem__ return the same rows for the same index on every rank",
    "TFDataset": "list its files in the same order, and give shuffles and splits the same seed, on every rank",
    "TorchDataLoader": "let its data set, sampler and workers draw from torch's generator, or seed others alike",
}


class Source:
    """A data adapter of Keras's, with what the ranks must agree on before they read from it.

    Args:
        adapter: made by Keras from the arguments of `fit`, without a distribution.
        given: the `x` of `fit`.
        auto_shard: False if the user says that the input is this rank's share already.
        remainder: what happens to rows of a global batch that the number of ranks does not divide.
    """

    def __init__(self, adapter: DataAdapter, given: Any, auto_shard: bool = True, remainder: Remainder = "exact"):
        self.adapter = adapter
        self.remainder = remainder
        self._is_dealt = is_marked(given)
        self.is_sharded = not auto_shard or self._is_dealt
        self.is_array = isinstance(adapter, ArrayDataAdapter) and is_dense(adapter._inputs)
        self.kind = f"{type(adapter).__name__.removesuffix('Adapter')}{' of dense arrays' if self.is_array else ''}"
        self.num_batches: int | None = adapter.num_batches
        self.is_infinite = False
        self.batch_size: int | None = adapter.batch_size
        self.digest: Digest | None = None
        self.uncut: tf.data.Dataset  # what `dataset` cuts: making an iterator of it moves the same seeds on
        self._dataset = adapter.get_tf_dataset() if isinstance(adapter, TFDatasetAdapter) else None
        if isinstance(self._dataset, tf.data.Dataset):
            self.is_infinite = int(self._dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
            self.batch_size = None if is_unbatched(self._dataset) else batch_size(self._dataset)
        elif isinstance(adapter, PyDatasetAdapter):
            self.is_infinite = adapter.num_batches is None

        if remainder == "drop" and not self.is_array and not self.is_sharded:
            self.num_batches = None  # a last batch with fewer rows than ranks is no batch

    @property
    def changed_rows(self) -> str | None:
        """What the policy does to the odd rows of a batch, None if they are all used once."""
        what = {"wrap": "read twice", "drop": "left out"}
        return None if self.is_sharded else what.get(self.remainder)

    @property
    def may_end_unannounced(self) -> bool:
        """True if only reading shows how many batches there are."""
        return self.num_batches is None and not self.is_infinite

    @property
    def order(self) -> Any:
        """What decides the order of batches in this process's Python, to be rank 0's everywhere; None if nothing."""
        shuffles = isinstance(self.adapter, PyDatasetAdapter) and self.adapter.shuffle and not self.is_infinite
        return random.getstate() if shuffles and not has("3.16") else None  # since then by the epoch's number alone

    @property
    def _is_ordered_here(self) -> bool:
        """True if the order of a PyDataset, or what its workers leave to the next epoch, is not as Keras has it."""
        has_workers = getattr(self.adapter, "enqueuer", None) is not None and not self.is_infinite
        return not has("3.16") and (self.order is not None or has_workers)

    @property
    def loader(self) -> Any:
        """The DataLoader whose order comes from torch's generators, which are to stand as rank 0's; None for others."""
        is_common = not self.is_sharded or self._is_dealt
        return self.adapter._dataloader if is_common and isinstance(self.adapter, TorchDataLoaderAdapter) else None

    @property
    def advice(self) -> str:
        """What gives all ranks the same rows of such an input."""
        return ADVICE[type(self.adapter).__name__.removesuffix("Adapter")]

    def complaint(self, num_ranks: int) -> str | None:
        """One sentence about why this input cannot be trained on by `num_ranks`, or None."""
        if isinstance(self._dataset, tf.distribute.DistributedDataset):
            return (
                "the dataset was distributed by a strategy of tf.distribute, so that it cannot be cut for the ranks: "
                "use the tf.data.Dataset that it was made from."
            )
        if self._dataset is not None and is_unbatched(self._dataset):
            return "the dataset has scalar elements, so it is not batched: add .batch(global_batch_size) to it."
        is_small = self.batch_size is not None and self.batch_size < num_ranks
        if is_small and not self.is_sharded and self.remainder == "drop":
            return (
                f"remainder='drop' leaves nothing of global batches of {self.batch_size} rows, fewer than the "
                f"{num_ranks} ranks: use remainder='exact', or batches of at least one row a rank."
            )
        return None

    def checksum(self) -> int | None:
        """A number that differs if arrays that all ranks were given alike do; None for what is not arrays."""
        return checksum(self.adapter._inputs) if self.is_array and not self.is_sharded else None

    def dataset(self, num_shards: int, shard_id: int, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        """A dataset of one of the three kinds of shards, or of `Part`s if the user has sharded the input.

        Args:
            num_shards: number of ranks.
            shard_id: this rank.
            shuffle_seed: TensorFlow's global seed by which arrays are shuffled, None for this process's own.
            order: rank 0's `order`.
        """
        with without_distribution():
            return self._dataset_of(num_shards, shard_id, shuffle_seed, order)

    def _dataset_of(self, num_shards: int, shard_id: int, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        if self.is_array and not self.is_sharded:
            rest = self.adapter._num_samples % self.adapter.batch_size
            if self.remainder == "drop" and 0 < rest < num_shards:
                self.num_batches = self.adapter.num_batches - 1
            self.uncut = row_numbers(self.adapter, shuffle_seed)
            return cut_arrays(self.adapter, self.uncut, num_shards, shard_id, self.remainder)
        if self._is_ordered_here:
            self.adapter = InOrder(self.adapter, order, self.is_sharded)
        dataset = self._dataset
        if dataset is None:
            with seeded(shuffle_seed):  # by which sparse arrays are shuffled
                dataset = untuned(self.adapter.get_tf_dataset())
        self.uncut = dataset
        if self.is_sharded:
            return self._ahead(dataset.map(as_it_is(lambda *element: Part(whole(dataset, element)))))
        if self.remainder == "drop":
            dataset = dataset.filter(as_it_is(lambda *element: num_rows(counting_part(element)) >= num_shards))
        self.digest = digest = Digest()
        history = History(dataset.element_spec)

        @as_it_is
        def cut_noted(index, batch):
            digest.note(index, batch)
            return cut(batch, num_shards, shard_id, self.remainder, history)

        return self._ahead(dataset.enumerate().map(cut_noted))

    def _ahead(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """`dataset`, read ahead of the steps; not so a PyDataset's workers, who refuse to be asked between epochs."""
        return dataset if getattr(self.adapter, "enqueuer", None) is not None else dataset.prefetch(2)


@contextlib.contextmanager
def without_distribution():
    """Hides the strategy from Keras's data adapters, which would refuse arrays or cut datasets their own way."""
    strategy = distribution_lib.distribution()
    distribution_lib.set_distribution(None)
    try:
        yield
    finally:
        distribution_lib.set_distribution(strategy)


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset of Python's making without tf.data's tuning thread, which has nothing to tune and delays its end."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def is_unbatched(dataset: tf.data.Dataset) -> bool:
    """True if the targets, or all parts of each element, have no dims, so that it cannot be a batch."""
    targets = targets_of(dataset.element_spec)
    parts = [
        [spec for spec in tf.nest.flatten(nest) if getattr(spec, "shape", None) is not None]
        for nest in (targets, dataset.element_spec)
    ]
    return any(each and not any(map(has_dims, each)) for each in parts)


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """Rows of a full batch, None if the pipeline does not tell.

    Keras asks the same private function of TensorFlow in `Distribution.distribute_tf_dataset`.
    """
    from tensorflow.python.data.experimental.ops.distribute import compute_batch_size

    if not all(map(has_dims, tf.nest.flatten(dataset.element_spec))):
        return None
    size = int(compute_batch_size(dataset))
    return size if size > 0 else None


def whole(dataset: tf.data.Dataset, element: tuple) -> Any:
    """The element as the dataset's user sees it, from the arguments that `map` passes."""
    return element if isinstance(dataset.element_spec, tuple) else element[0]
