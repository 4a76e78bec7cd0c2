"""Reads a PyDataset in rank 0's order, because Keras shuffles its batches with Python's generator of each process."""

import random
from typing import Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer, PyDatasetAdapter


class Reordered(keras.utils.PyDataset):
    """The batches of another PyDataset in an order that `reorder` draws.

    Args:
        inner: whose batches these are.
        generator: by which they are shuffled as Keras would.
        is_sharded: True if ranks may have unequal numbers of batches. Then each order comes from one draw of the
            generator, the same on all ranks, and not as Keras's would.
    """

    def __init__(self, inner: keras.utils.PyDataset, generator: random.Random, is_sharded: bool):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner, self.random = inner, generator
        self._is_sharded = is_sharded
        self._numbers = list(range(self.num_batches))

    def reorder(self) -> list[int]:
        """Draws a new order, and returns the batches' numbers in it."""
        self._numbers = list(range(self.num_batches))
        is_followed = random.getstate() == self.random.getstate()
        (random.Random(self.random.random()) if self._is_sharded else self.random).shuffle(self._numbers)
        if is_followed:  # Python's generator stands then where it stands in one process
            random.setstate(self.random.getstate())
        return self._numbers

    @property
    def num_batches(self):
        return self.inner.num_batches

    def __getitem__(self, index):
        return self.inner[self._numbers[index]]

    def on_epoch_begin(self):
        self.inner.on_epoch_begin()

    def on_epoch_end(self):
        self.inner.on_epoch_end()


class ReorderingEnqueuer(OrderedEnqueuer):
    """Keras's workers on a `Reordered`: as with Keras, an order begins each time they start."""

    def _run(self):
        self.py_dataset.reorder()
        super()._run()


class InOrder(PyDatasetAdapter):
    """Keras's adapter, whose batches are shuffled as Keras would on rank 0, whenever Keras would.

    Args:
        adapter: Keras's own, which shuffles.
        state: of Python's `random` on rank 0, as JSON carries it.
        is_sharded: as for `Reordered`.
    """

    def __init__(self, adapter: PyDatasetAdapter, state: Any, is_sharded: bool):
        self.random = random.Random()
        self.random.setstate(state_from(state))
        self._reordered = data = Reordered(adapter.py_dataset, self.random, is_sharded)
        super().__init__(data, class_weight=adapter.class_weight, shuffle=False)
        if adapter.enqueuer is not None:
            self.enqueuer = ReorderingEnqueuer(data, data.workers, data.use_multiprocessing, data.max_queue_size)

    def _finite_generator(self):
        for number in self._reordered.reorder():
            yield self._standardize_batch(self._reordered.inner[number])


def state_from(state: Any) -> tuple:
    """A state of Python's generator from what JSON makes of it."""
    version, internal, gauss = state
    return version, tuple(internal), gauss
