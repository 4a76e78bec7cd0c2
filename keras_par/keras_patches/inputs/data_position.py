"""A position in a data set that is counted, not stored, so that any number of ranks can go on from it.

What orders data (seeds of shuffles, of PyDatasets, of generators) starts anew in a new process; making as many
iterators as before and skipping what was read gives the same order, whatever the pipeline's buffers hold.
"""

import json
import random
from typing import Any, NamedTuple

import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter

from keras_par.base import generators
from keras_par.keras_patches.inputs.iterator_disposal import let_go_aside
from keras_par.keras_patches.inputs.py_dataset import InOrder


class Position(NamedTuple):
    """Where an epoch iterator is.

    Args:
        earlier: one character for each iterator made before the one that goes on: "1" if it was read, else "0".
        skip: batches of the one that goes on which have been read.
        num_batches: batches of an epoch if this is known by now.
        batch_size: rows of a global batch if this is known.
        num_epochs: complete epochs before it.
        order: the `order_of` the data from which the epoch that goes on was or will be shuffled.
    """

    earlier: str
    skip: int
    num_batches: int | None
    batch_size: int | None
    num_epochs: int
    order: str | None


def replay(adapter: DataAdapter, dataset: tf.data.Dataset, position: Position) -> None:
    """Brings the data's seeds to where they were, as if the epochs before had been read.

    Args:
        adapter: whose epochs are begun and ended.
        dataset: whose iterators are made, and read as far as its shuffling needs it.
        position: what to bring them to.
    """
    amount = amount_to_read(adapter)
    for was_read in position.earlier:
        iterator = iter(let_go_aside(dataset.take(1) if amount == 1 else dataset))
        if was_read == "1" and amount != 0:
            for _ in iterator:
                pass
    if isinstance(adapter, PyDatasetAdapter):
        for _ in range(position.num_epochs):
            adapter.on_epoch_begin()
            adapter.on_epoch_end()
        if position.order is not None:
            generators.set_python(json.loads(position.order), generator_of(adapter))


def order_of(adapter: DataAdapter) -> str | None:
    """The state, as JSON, of the generator in Python that shuffles the data; None if none does."""
    if isinstance(adapter, InOrder):
        shuffles = adapter.random is not None
    else:
        shuffles = isinstance(adapter, PyDatasetAdapter) and adapter.shuffle
    return json.dumps(generator_of(adapter).getstate()) if shuffles else None


def generator_of(adapter: PyDatasetAdapter) -> Any:
    """What shuffles a PyDataset: its own generator, or Python's global one, whose functions have the same names."""
    return adapter.random if isinstance(adapter, InOrder) else random


def amount_to_read(adapter: DataAdapter) -> int | None:
    """How many batches of an iterator must be read so that the next one's order is right; None: all.

    A shuffle takes a new seed when an iterator of it is made. One behind another makes its iterators when it is
    first read, one that is repeated each time it begins again, and one before a cache has its order from the first
    full reading. A DataLoader of torch's draws what its iteration needs when it begins, but for generators of the
    user's own.
    """
    if isinstance(adapter, TorchDataLoaderAdapter):
        return 1 if draws_at_its_begin(adapter._dataloader) else None
    if not isinstance(adapter, TFDatasetAdapter):
        return 0
    kinds = [type(dataset).__name__ for dataset in ancestors(adapter.get_tf_dataset())]
    num_shuffles = sum("Shuffle" in kind for kind in kinds)
    if num_shuffles and any("Repeat" in kind or "Cache" in kind for kind in kinds):
        return None
    return 1 if num_shuffles > 1 or any("FlatMap" in kind for kind in kinds) else 0


def draws_at_its_begin(loader: Any) -> bool:
    """True if a torch DataLoader takes batches from torch's own samplers and global generator."""
    own = ("BatchSampler", "RandomSampler", "SequentialSampler")
    samplers = [loader.sampler, loader.batch_sampler]
    return loader.generator is None and all(
        type(sampler).__name__ in own and getattr(sampler, "generator", None) is None for sampler in samplers
    )


def ancestors(dataset: Any) -> list:
    """A dataset and all it is made of. TensorFlow tells this by a private method only."""
    return [dataset, *(ancestor for parent in dataset._inputs() for ancestor in ancestors(parent))]
