"""Trainings on PyDatasets that are shuffled, read by workers, or stopped in the middle; also run in one process."""

import contextlib
import random
import time
import warnings
from unittest import mock

import keras
import numpy as np
from keras.src.trainers.data_adapters import py_dataset_adapter

from tests.cases import crossentropy, network, rows
from tests.tasks import seed, strategy_scope

NUM_BATCHES, BATCH_SIZE = 8, 5


class Batches(keras.utils.PyDataset):
    """Batches of rows, or the same again and again without an end."""

    def __init__(self, is_infinite: bool, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y = rows(NUM_BATCHES * BATCH_SIZE - 2)
        self.is_infinite = is_infinite

    @property
    def num_batches(self):
        return None if self.is_infinite else NUM_BATCHES

    def __getitem__(self, index):
        begin = index % NUM_BATCHES * BATCH_SIZE
        return self.x[begin : begin + BATCH_SIZE], self.y[begin : begin + BATCH_SIZE]


class Turning(keras.utils.PyDataset):
    """Batches of rows whose order is another before and after each epoch."""

    def __init__(self, batch_size: int):
        super().__init__()
        self.arrays, self.batch_size = rows(NUM_BATCHES * BATCH_SIZE), batch_size

    @property
    def num_batches(self):
        return NUM_BATCHES * BATCH_SIZE // self.batch_size

    def __getitem__(self, index):
        return tuple(array[self.batch_size * index :][: self.batch_size] for array in self.arrays)

    def on_epoch_begin(self):
        self.turn(1)

    def on_epoch_end(self):
        self.turn(7)

    def turn(self, num_rows: int) -> None:
        self.arrays = [np.roll(array, num_rows, 0) for array in self.arrays]


def train_on_turning(distributed: bool) -> list:
    """Weights after epochs of batches that are dealt out to ranks, each of which has a part of one process's."""
    data: keras.utils.PyDataset = Turning(2 * BATCH_SIZE)
    if distributed:
        import keras_par as kp

        data = kp.data.shard(Turning(2 * BATCH_SIZE // kp.size()))
    seed(distributed)
    with strategy_scope(distributed):
        model = network()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy())
    model.fit(data, shuffle=False, epochs=3, verbose=0)
    return model.get_weights()


def train(
    is_infinite: bool,
    workers: int,
    steps: int | None,
    distributed: bool,
    processes: bool = False,
    shuffle: bool = True,
    slow_rank: int | None = None,
) -> dict:
    """Weights and logs after 5 epochs of `steps` steps, where one rank's workers may be slow to start."""
    seed(distributed)
    random.seed(13 + rank(distributed))  # only rank 0's seed is the one of the plain process
    with strategy_scope(distributed):
        model = network()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy())
    data = Batches(is_infinite, workers=workers, use_multiprocessing=processes)
    workers_start = slowly if slow_rank == rank(distributed) else contextlib.nullcontext
    with workers_start(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data|`shuffle=True` was passed", UserWarning)
        warnings.filterwarnings("ignore", ".*use_multiprocessing|.*fork", DeprecationWarning)
        shuffles = shuffle and not is_infinite
        history = model.fit(data, steps_per_epoch=steps, shuffle=shuffles, epochs=5, verbose=0)
    return {"weights": model.get_weights(), "logs": history.history, "steps": int(model.optimizer.iterations.value)}


@contextlib.contextmanager
def slowly():
    """While Keras's workers need longer to start than some steps take, as on a busy machine."""
    pool_class = py_dataset_adapter.get_pool_class

    def late(use_multiprocessing):
        time.sleep(0.1)
        return pool_class(use_multiprocessing)

    with mock.patch.object(py_dataset_adapter, "get_pool_class", late):
        yield


def rank(distributed: bool) -> int:
    """This rank, 0 in the plain process."""
    if not distributed:
        return 0
    import keras_par as kp

    return kp.rank()
