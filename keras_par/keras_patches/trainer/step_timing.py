"""Measures the training steps of a model from inside: the rows of each, and the time in collectives."""

import functools
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm import world
from keras_par.comm.timed import MeasuringCommunicator
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.inputs.row_parts import counting_part, num_rows

ATTRIBUTE = "_keras_par_meter"


@dataclass
class Meter:
    """What a measured training function counts in.

    Args:
        rows: an int64 variable, all rows of all ranks since it was made; without a strategy, of this process.
        communicator: measures the time in collectives; None where there are none.
        function: the training function, once it is made.
    """

    rows: tf.Variable
    communicator: MeasuringCommunicator | None
    function: Any = None

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
    meter = meter_of(model)
    if meter is None or meter.function is not model.train_function or inner is not inner_of(meter):
        communicator = None if inner is None else MeasuringCommunicator(inner)
        meter = Meter(tf.Variable(0, trainable=False, dtype=tf.int64), communicator)
        setattr(model, ATTRIBUTE, meter)
        if run is None:  # whose steps are no programs, which count their rows
            model.train_function = model._make_function(counted(model))
        else:
            model.make_train_function(force=True)
        meter.function = model.train_function
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


def meter_of(model: keras.Model) -> Meter | None:
    """What measures the model's training, None if nothing does."""
    return getattr(model, ATTRIBUTE, None)


def inner_of(meter: Meter):
    return None if meter.communicator is None else meter.communicator.inner


def count(model: keras.Model, rows: Any) -> None:
    """Counts the rows of a training step under way if training is measured."""
    meter = meter_of(model)
    if meter is not None:
        meter.rows.assign_add(tf.cast(rows, tf.int64))


def counted(model: keras.Model):
    """The training step of a model without a strategy, with its rows counted."""
    train_step = model.train_step

    @functools.wraps(train_step)
    def counting(data):
        count(model, num_rows(counting_part(data)))
        return train_step(data)

    return counting
