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
    """

    def __init__(self, adapter: PyDatasetAdapter, state: Any):
        self._reordered = Reordered(adapter.py_dataset)
        super().__init__(self._reordered, class_weight=adapter.class_weight, shuffle=False)
        version, internal, gauss = state
        self._random = random.Random()
        self._random.setstate((version, tuple(internal), gauss))

    def on_epoch_begin(self):
        numbers = list(range(self._reordered.num_batches))
        self._random.shuffle(numbers)
        self._reordered.numbers = numbers
        super().on_epoch_begin()
