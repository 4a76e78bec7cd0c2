"""Reads a PyDataset in rank 0's order, because Keras shuffles its batches with Python's generator of each process."""

import random
from typing import Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter


class Reordered(keras.utils.PyDataset):
    """The batches of `inner` in the order of their numbers in `numbers`."""

    def __init__(self, inner: keras.utils.PyDataset):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner = inner
        self.numbers = list(range(self.num_batches))

    @property
    def num_batches(self):
        return self.inner.num_batches

    def __getitem__(self, index):
        return self.inner[self.numbers[index]]

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()


class InOrder(PyDatasetAdapter):
    """Keras's adapter, whose batches are shuffled at each epoch's begin as Keras would on rank 0.

    Args:
        adapter: Keras's own, which shuffles.
        state: of Python's `random` on rank 0, as JSON carries it.
        is_sharded: True if ranks may have unequal numbers of batches. Then each epoch's order comes from one draw of
            `random`, the same on all ranks, and not as Keras's would.
    """

    def __init__(self, adapter: PyDatasetAdapter, state: Any, is_sharded: bool):
        self._reordered = Reordered(adapter.py_dataset)
        super().__init__(self._reordered, class_weight=adapter.class_weight, shuffle=False)
        self.random = random.Random()
        self.random.setstate(state_from(state))
        self._is_sharded = is_sharded

    def on_epoch_begin(self):
        numbers = list(range(self._reordered.num_batches))
        (random.Random(self.random.random()) if self._is_sharded else self.random).shuffle(numbers)
        self._reordered.numbers = numbers
        super().on_epoch_begin()


def state_from(state: Any) -> tuple:
    """A state of Python's generator from what JSON makes of it."""
    version, internal, gauss = state
    return version, tuple(internal), gauss
