"""A PyDataset as an input, in rank 0's order on all ranks, whatever Python's generators and workers do on others."""

import collections
import json
import queue
import random
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer, PyDatasetAdapter

from keras_par.base import generators
from keras_par.keras_patches.inputs.input import Input, Position
from keras_par.keras_patches.inputs.own_shares import Sharding, mark
from keras_par.keras_patches.table.uses import has


class PyDatasetInput(Input):
    """A PyDataset of global batches."""

    adapter_type = PyDatasetAdapter
    advice = "let its __getitem__ return the same rows for the same index on every rank"

    @staticmethod
    def takes(data: Any) -> bool:
        return isinstance(data, keras.utils.PyDataset)

    @staticmethod
    def shard(data: Any, sharding: Sharding) -> keras.utils.PyDataset:
        """Batches of a PyDataset, dealt out whole."""
        if data.num_batches is not None:
            sharding.say_remainder(data.num_batches)
        return mark(Dealt(data, sharding))

    @property
    def is_infinite(self) -> bool:  # type: ignore[override]
        return self.adapter.num_batches is None

    @property
    def _has_workers(self) -> bool:
        return getattr(self.adapter, "enqueuer", None) is not None and not self.is_infinite

    @property
    def order(self) -> Any:  # type: ignore[override]
        shuffles = self.adapter.shuffle and not self.is_infinite
        return random.getstate() if shuffles and not has("3.16") else None  # since then by the epoch's number alone

    @property
    def _generator(self) -> Any:
        """What shuffles: a generator of its own, or Python's global one, whose functions have the same names."""
        return self.adapter.random if isinstance(self.adapter, InOrder) else random if self.adapter.shuffle else None

    @property
    def order_now(self) -> str | None:  # type: ignore[override]
        return None if self._generator is None else json.dumps(self._generator.getstate())

    @property
    def reads_ahead(self) -> bool:  # type: ignore[override]
        return self._has_workers and not isinstance(self.adapter, InOrder)

    def replay(self, dataset: tf.data.Dataset, position: Position) -> None:
        super().replay(dataset, position)
        for _ in range(position.num_epochs):
            self.adapter.on_epoch_begin()
            self.adapter.on_epoch_end()
        if position.order is not None:
            generators.set_python(json.loads(position.order), self._generator)

    def _read(self, shuffle_seed: int | None, order: Any) -> tf.data.Dataset:
        if not has("3.16") and (self.order is not None or self._has_workers):
            self.adapter = InOrder(self.adapter, order, self.is_sharded)
        return super()._read(shuffle_seed, order)

    def _ahead(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Not ahead of steps where it has workers, who refuse to be asked between epochs."""
        return dataset if getattr(self.adapter, "enqueuer", None) is not None else super()._ahead(dataset)


class Dealt(keras.utils.PyDataset):
    """Some of another PyDataset's batches."""

    def __init__(self, inner: keras.utils.PyDataset, sharding: Sharding):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self._inner, self._sharding = inner, sharding

    @property
    def num_batches(self):
        length = self._inner.num_batches
        return None if length is None else self._sharding.size(length)

    def __getitem__(self, index):
        number, length = self._sharding.shard_id + self._sharding.num_shards * index, self._inner.num_batches
        return self._inner[number if length is None else number % length]

    def on_epoch_begin(self):
        self._inner.on_epoch_begin()

    def on_epoch_end(self):
        self._inner.on_epoch_end()


class Unbounded(keras.utils.PyDataset):
    """Another PyDataset as one without an end, of which Keras's workers read the batches that they are told to."""

    def __init__(self, inner: keras.utils.PyDataset):
        super().__init__(inner.workers, inner.use_multiprocessing, inner.max_queue_size)
        self.inner = inner

    @property
    def num_batches(self):
        return None

    def __getitem__(self, index):
        return self.inner[index]


class PatientEnqueuer(OrderedEnqueuer):
    """Keras's workers, who go on in the next epoch with what they have not begun to read in this one.

    Keras's forget it, so that the batches of the next epoch depend on how fast the workers are. It happens where an
    epoch ends before its data does (`steps_per_epoch`).
    """

    _rest: collections.deque[int] | None = None  # of the order that has begun

    def begin(self, numbers: Iterable[int]) -> None:
        """Reads the batches of these numbers, and none that are left of an order before."""
        self.stop()
        self.ready_queue: queue.Queue = queue.Queue()
        self.future_queue: queue.Queue = queue.Queue(self.py_dataset.max_queue_size)
        self._rest = collections.deque(numbers)
        self.start()

    def start(self) -> None:
        """Begins or goes on to read; before an order has begun there is nothing to read."""
        if self._rest is not None:
            super().start()

    def _run(self):
        self.indices = self._taken()
        super()._run()

    def _taken(self) -> Iterator[int]:
        while self._rest:
            yield self._rest.popleft()


class InOrder(PyDatasetAdapter):
    """Keras's adapter of a PyDataset with an end, whose batches come in the order of Keras on rank 0.

    Args:
        adapter: Keras's own.
        state: of Python's `random` on rank 0, as JSON carries it; None if nothing shuffles.
        is_sharded: True if ranks may have unequal numbers of batches. Then each order comes from one draw of the
            generator, the same on all ranks, and not as Keras's would.
    """

    def __init__(self, adapter: PyDatasetAdapter, state: Any, is_sharded: bool):
        self.random = None if state is None else random.Random()
        if self.random is not None:
            generators.set_python(state, self.random)
        self._is_sharded = is_sharded
        data = adapter.py_dataset
        super().__init__(data, class_weight=adapter.class_weight, shuffle=False)
        if adapter.enqueuer is not None:
            unbounded = Unbounded(data)
            self.enqueuer = PatientEnqueuer(unbounded, data.workers, data.use_multiprocessing, data.max_queue_size)

    def _finite_generator(self):
        for number in self._new_order():
            yield self._standardize_batch(self.py_dataset[number])

    def _finite_enqueuer_generator(self):
        numbers = self._new_order()
        self.enqueuer.begin(numbers)
        for count, batch in enumerate(self.enqueuer.get(), start=1):
            yield self._standardize_batch(batch)
            if count == len(numbers):
                self.enqueuer.stop()
                return

    def _new_order(self) -> list[int]:
        """The numbers of the batches in the order of a new iteration, which is drawn where Keras draws it."""
        numbers = list(range(self.py_dataset.num_batches))
        if self.random is not None:
            is_followed = random.getstate() == self.random.getstate()
            (random.Random(self.random.random()) if self._is_sharded else self.random).shuffle(numbers)
            if is_followed:  # Python's generator stands then where it stands in one process
                random.setstate(self.random.getstate())
        return numbers
