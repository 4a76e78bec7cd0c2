"""A position in a data set that is counted, not stored, so that any number of ranks can go on from it.

What orders data (seeds of shuffles, of PyDatasets, of generators) starts anew in a new process; making as many
iterators as before and skipping what was read gives the same order, whatever the pipeline's buffers hold.
"""

from typing import Any, NamedTuple

import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter


class Position(NamedTuple):
    """Where an epoch iterator is.

    Args:
        earlier: one character for each iterator made before the one that goes on: "1" if it was read, else "0".
        skip: batches of the one that goes on which have been read.
        num_batches: batches of an epoch if this is known by now.
        num_epochs: complete epochs before it.
    """

    earlier: str
    skip: int
    num_batches: int | None
    num_epochs: int


def replay(adapter: DataAdapter, dataset: tf.data.Dataset, position: Position) -> None:
    """Brings the data's seeds to where they were, as if the epochs before had been read.

    Args:
        adapter: whose epochs are begun and ended.
        dataset: whose iterators are made, and read as far as its shuffling needs it.
        position: what to bring them to.
    """
    amount = amount_to_read(adapter)
    for was_read in position.earlier:
        iterator = iter(dataset.take(1) if amount == 1 else dataset)
        if was_read == "1" and amount != 0:
            for _ in iterator:
                pass
    if isinstance(adapter, PyDatasetAdapter):
        for _ in range(position.num_epochs):
            adapter.on_epoch_begin()
            adapter.on_epoch_end()


def amount_to_read(adapter: DataAdapter) -> int | None:
    """How many batches of an iterator must be read so that the next one's order is right; None: all.

    A shuffle takes a new seed when an iterator of it is made. One behind another makes its iterators when it is
    first read, and one that is repeated each time it begins again.
    """
    if isinstance(adapter, TorchDataLoaderAdapter):
        return 1  # a RandomSampler draws its seed then
    if not isinstance(adapter, TFDatasetAdapter):
        return 0
    kinds = [type(dataset).__name__ for dataset in ancestors(adapter.get_tf_dataset())]
    num_shuffles = sum("Shuffle" in kind for kind in kinds)
    if num_shuffles and any("Repeat" in kind for kind in kinds):
        return None
    return 1 if num_shuffles > 1 or any("FlatMap" in kind for kind in kinds) else 0


def ancestors(dataset: Any) -> list:
    """A dataset and all it is made of. TensorFlow tells this by a private method only."""
    return [dataset, *(ancestor for parent in dataset._inputs() for ancestor in ancestors(parent))]
