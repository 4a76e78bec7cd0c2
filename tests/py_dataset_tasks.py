"""Trainings on PyDatasets that are shuffled, read by workers, or stopped in the middle; also run in one process."""

import random
import time
import warnings

import keras

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


def waiting() -> keras.callbacks.Callback:
    """Gives Keras's workers time for all of an order; the end of an epoch leaves out what they have not begun with."""
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(0.03))


def train(is_infinite: bool, workers: int, steps: int | None, distributed: bool, processes: bool = False) -> dict:
    """Weights, logs and the position of Python's random numbers after 5 epochs of `steps` steps."""
    seed(distributed)
    random.seed(13 if not distributed else rank_seed())
    with strategy_scope(distributed):
        model = network()
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), crossentropy())
    data = Batches(is_infinite, workers=workers, use_multiprocessing=processes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data|`shuffle=True` was passed", UserWarning)
        warnings.filterwarnings("ignore", ".*use_multiprocessing|.*fork", DeprecationWarning)
        options = {"steps_per_epoch": steps, "shuffle": not is_infinite, "callbacks": [waiting()]}
        history = model.fit(data, **options, epochs=5, verbose=0)
    return {"weights": model.get_weights(), "logs": history.history, "steps": int(model.optimizer.iterations.value)}


def rank_seed() -> int:
    """Only rank 0's seed is the one of the plain process."""
    import keras_par as kp

    return 13 + kp.rank()
