"""Measures the training steps of a model from inside: the rows of each, and the time in collectives."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.measuring import MeasuringCommunicator
from keras_par.seam.feed.shards import first_leaf, num_rows
from keras_par.seam.together import run as runs
from keras_par.sharding import step as steps

ATTRIBUTE = "_keras_par_meter"


@dataclass(frozen=True)
class Meter:
    """What a measured training function counts in.

    Args:
        function: the training function.
        rows: an int64 variable, all rows of all ranks since it was made; without a strategy, of this process.
        communicator: measures the time in collectives; None where there are none.
    """

    function: Any
    rows: tf.Variable
    communicator: MeasuringCommunicator | None

    @property
    def seconds(self) -> float:
        """The time this rank has spent in collectives."""
        return 0.0 if self.communicator is None else self.communicator.seconds


def start(model: keras.Model) -> Meter:
    """Measures the model's training, from within `fit` and before its first step, until `stop`.

    A training function that is not measured is replaced by one that is, which is traced anew; the model keeps it for
    later calls of `fit`.
    """
    run = run_of(model)
    inner = None
    if run is not None:
        inner = world.current()
        inner = inner.inner if isinstance(inner, MeasuringCommunicator) else inner
    meter = getattr(model, ATTRIBUTE, None)
    if meter is None or meter.function is not model.train_function or inner is not inner_of(meter):
        communicator = None if inner is None else MeasuringCommunicator(inner)
        rows = tf.Variable(0, trainable=False, dtype=tf.int64)
        meter = Meter(counting_function(model, rows), rows, communicator)
        setattr(model, ATTRIBUTE, meter)
    if run is not None and meter.communicator is not None:
        meter.communicator.restart()
        world.replace(meter.communicator)
        run.communicator = meter.communicator
    return meter


def stop(meter: Meter) -> None:
    """Makes the communicator that was measured the active one again."""
    if meter.communicator is not None and world.is_started() and world.current() is meter.communicator:
        world.replace(meter.communicator.inner)


def run_of(model: keras.Model) -> runs.Run | None:
    """The call of a trainer method by which all ranks train this model together, None if there is none."""
    run = runs.current()
    return run if run is not None and run.model is model else None


def inner_of(meter: Meter):
    return None if meter.communicator is None else meter.communicator.inner


def counting_function(model: keras.Model, rows: tf.Variable):
    """A new training function of `model` that adds each step's rows to `rows`."""
    train_step: Any = model.train_step

    @functools.wraps(train_step)
    def counting(data):
        step = steps.current()
        rows.assign_add(num_rows(first_leaf(data)) if step is None else tf.cast(step.total, tf.int64))
        return train_step(data)

    replacement: Any = counting
    replacement.__func__ = getattr(train_step, "__func__", train_step)  # by which Keras's own step is recognized
    own = vars(model).get("train_step")
    model.train_step = replacement
    try:
        model.make_train_function(force=True)
    finally:
        if own is None:
            del model.train_step
        else:
            model.train_step = own
    return model.train_function
