"""A tf.data.Dataset as an input: cut behind its pipeline, and read again as far as its shuffles need it."""

import functools
import os
from typing import Any

import tensorflow as tf
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

from keras_par.keras_patches.inputs.components import has_dims, targets_of
from keras_par.keras_patches.inputs.input import Input
from keras_par.keras_patches.inputs.own_shares import Sharding, mark


class TFDatasetInput(Input):
    """A tf.data.Dataset of global batches; `kp.data.shard` takes lists of files, too."""

    adapter_type = TFDatasetAdapter
    advice = "list its files in the same order, and give shuffles and splits the same seed, on every rank"

    @staticmethod
    def takes(data: Any) -> bool:
        return isinstance(data, tf.data.Dataset) or is_list_of_files(data)

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> tf.data.Dataset:
        """What a dataset yields; works on infinite ones, and for "exact" on those of unknown length."""
        if not isinstance(data, tf.data.Dataset):
            data = tf.data.Dataset.from_tensor_slices([os.fspath(name) for name in data])
        length = int(data.cardinality())
        share = data.shard(sharding.num_shards, sharding.shard_id)
        if sharding.remainder == "exact" or length == tf.data.INFINITE_CARDINALITY:
            return mark(share)
        if length == tf.data.UNKNOWN_CARDINALITY:
            sharding.refuse_unknown_length()
        sharding.say_remainder(length)
        if sharding.remainder == "drop":
            return mark(share.take(sharding.size(length)))
        # Every rank reads the elements that are read again, also those it does not take: else a shuffle before this,
        # which takes a new seed each time it is read, would soon give the ranks different orders.
        again = data.repeat().take(-length % sharding.num_shards).enumerate(length)
        own = again.filter(lambda number, *_: sharding.has(number)).map(lambda _, element: element)
        return mark(share.concatenate(own).apply(tf.data.experimental.assert_cardinality(sharding.size(length))))

    @functools.cached_property
    def is_infinite(self) -> bool:  # type: ignore[override]
        dataset = self.adapter.get_tf_dataset()
        return isinstance(dataset, tf.data.Dataset) and int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY

    @functools.cached_property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Rows of a full batch, None if the pipeline does not tell.

        As TensorFlow's private `compute_batch_size` finds them, which Keras asks in its own `distribute_dataset`.
        """
        dataset = self.adapter.get_tf_dataset()
        if not isinstance(dataset, tf.data.Dataset):
            return None
        specs = tf.nest.flatten(dataset.element_spec)
        if is_unbatched(dataset.element_spec) or not all(map(has_dims, specs)):
            return None
        sizes = {spec.shape[0] for spec in specs}
        if None not in sizes:
            return sizes.pop() if len(sizes) == 1 else None
        size = int(tf.raw_ops.ComputeBatchSize(input_dataset=tf.data.experimental.to_variant(dataset)))
        return size if size > 0 else None

    @property
    def num_to_replay(self) -> int | None:  # type: ignore[override]
        """A shuffle takes a new seed when an iterator of it is made.

        One behind another makes its iterators when it is first read, one that is repeated each time it begins again,
        and one before a cache has its order from the first full reading.
        """
        kinds = [type(dataset).__name__ for dataset in ancestors(self.adapter.get_tf_dataset())]
        num_shuffles = sum("Shuffle" in kind for kind in kinds)
        if num_shuffles and any("Repeat" in kind or "Cache" in kind for kind in kinds):
            return None
        return 1 if num_shuffles > 1 or any("FlatMap" in kind for kind in kinds) else 0

    def complaint(self, num_ranks: int) -> str | None:
        dataset = self.adapter.get_tf_dataset()
        if isinstance(dataset, tf.distribute.DistributedDataset):
            return (
                "the dataset was distributed by a strategy of tf.distribute, so that it cannot be cut for the ranks: "
                "use the tf.data.Dataset that it was made from."
            )
        if is_unbatched(dataset.element_spec):
            return "the dataset has scalar elements, so it is not batched: add .batch(global_batch_size) to it."
        return super().complaint(num_ranks)

    def _read(self, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        return self.adapter.get_tf_dataset()  # which is tuned as the user has it


def is_list_of_files(data: Any) -> bool:
    """True for names and paths, of which each is an element."""
    is_list = isinstance(data, (list, tuple)) and bool(data)
    return is_list and all(isinstance(name, (str, bytes, os.PathLike)) for name in data)


def is_unbatched(spec: Any) -> bool:
    """True if the targets, or all components of each element, have no dims, so that it cannot be a batch."""
    components = [
        [leaf for leaf in tf.nest.flatten(nest) if getattr(leaf, "shape", None) is not None]
        for nest in (targets_of(spec), spec)
    ]
    return any(each and not any(map(has_dims, each)) for each in components)


def ancestors(dataset: Any) -> list:
    """A dataset and all it is made of. TensorFlow tells this by a private method only."""
    return [dataset, *(ancestor for parent in dataset._inputs() for ancestor in ancestors(parent))]
