"""Trainings whose callbacks remember something, stopped somewhere and gone on with."""

import contextlib
import warnings

import keras
import numpy as np
import tensorflow as tf

from tests.cases import rows
from tests.checkpoint_tasks import Stop

NUM_ROWS = 64


class Tally(keras.callbacks.Callback):
    """Remembers numbers, arrays and text, by the protocol for users' callbacks."""

    def __init__(self, rank: int):
        super().__init__()
        self.rank = rank

    def on_train_begin(self, logs=None):
        self.state = {"losses": [], "sum": np.zeros([3], "float32"), "half": tf.zeros([2], "bfloat16").numpy()}
        self.state |= {"rank": self.rank, "deep": {"none": None, "text": ["a"], "least": float("inf")}}

    def on_epoch_end(self, epoch, logs=None):
        self.state["losses"].append(logs["val_loss"])
        self.state["sum"] += np.float32(epoch)
        self.state["half"] += 0.5
        self.state["deep"]["least"] = min(self.state["deep"]["least"], logs["val_loss"])

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


class Unwilling(Tally):
    """Remembers what no file can hold."""

    def get_state(self):
        return {"model": self.model}


def network() -> keras.Model:
    """Learns so fast that its loss goes up and down."""
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1.5, use_ema=True, ema_momentum=0.5), loss)
    return model


def deciding(patience: int) -> list[keras.callbacks.Callback]:
    return [
        keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=1, factor=0.7, cooldown=2),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    ]


def fit(
    folder: str | None,
    stop: tuple | None = None,
    epochs: int = 14,
    patience: int = 4,
    without: str = "",
    unwilling: bool = False,
    every: int | str = 3,
) -> dict:
    """Trains from the newest checkpoint in `folder` on (None: without any, in the plain process), or to `stop`."""
    keras.utils.set_random_seed(5)
    callbacks = [each for each in deciding(patience) if type(each).__name__ != without]
    scope, resume, rank = contextlib.nullcontext(), None, 0
    if folder is not None:
        import keras_par as kp

        scope, rank = kp.DataParallel().scope(), kp.rank()
        resume = kp.callbacks.Resume(folder)
        # It stands before those whose memory it saves.
        callbacks = [resume, kp.callbacks.RankCheckpoint(folder, every=every, asynchronous=False), *callbacks]
    tally = (Unwilling if unwilling else Tally)(rank)
    seen: list = []
    callbacks += [tally, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(look(callbacks)))]
    callbacks += [Stop(*stop)] if stop else []
    with scope:
        model = network()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x, y = rows(NUM_ROWS)
            options = {"batch_size": 16, "epochs": epochs, "verbose": 0, "validation_data": rows(33, 5)}
            epoch = model.fit(x, y, callbacks=callbacks, **options).epoch
        except RuntimeError as error:
            assert stop is not None and str(error) == "stopped", error
            epoch = None
    return {
        "weights": model.get_weights(),
        "decisions": look(callbacks),
        "seen": seen,
        "epochs": epoch,
        "rate": float(model.optimizer.learning_rate),
        "tally": {**tally.state, "half": np.float32(tally.state["half"])},
        "from": resume and resume.resumed_from,
        "warnings": [str(each.message) for each in caught if "keras-par" in str(each.message)],
    }


def look(callbacks: list) -> list[dict]:
    names = ("best", "wait", "stopped_epoch", "best_epoch", "cooldown_counter")
    return [{name: getattr(each, name) for name in names if hasattr(each, name)} for each in callbacks]
