"""Has training steps count their rows and time their collectives, for those who show what time goes into."""

import contextlib
import functools

import keras
import tensorflow as tf

from keras_par.job import rank_heartbeat
from keras_par.keras_patches.inputs.components import counting_component, num_rows
from keras_par.keras_patches.models import binding as bindings

MEASURED = "_keras_par_measured"  # what counts a model's rows, and the training function that does


def measure(model: keras.Model) -> tf.Variable:
    """Measures the model's training, from within `fit` and before its first step.

    A training function that is not measured is replaced by one that is, which is traced anew; the model keeps it for
    later calls of `fit`. What its collectives take is then in `Heartbeat.collective_seconds`.

    Returns:
        An int64 variable, all rows of all ranks since it was made; without a strategy, of this process.
    """
    rows = rows_of(model)
    if rows is None:
        rows = tf.Variable(0, trainable=False, dtype=tf.int64)
        vars(model)[MEASURED] = rows, None  # not by setattr, which would track it
        if bindings.of(model) is None:  # its steps are no programs, which count their rows
            model.train_function = model._make_function(counted(model, rows))
        else:
            model.make_train_function(force=True)
        vars(model)[MEASURED] = rows, model.train_function
    return rows


def rows_of(model: keras.Model) -> tf.Variable | None:
    """What the model's training function counts its rows in, None if it is not measured."""
    rows, function = vars(model).get(MEASURED, (None, None))
    return rows if function is model.train_function else None


@contextlib.contextmanager
def measured(model: keras.Model, method: str):
    """Around a step of the model, which is given what its rows are counted in; None if training is not measured.

    In the graph of a measured step collectives are timed.
    """
    heartbeat, rows = rank_heartbeat.current(), rows_of(model) if method == "train_step" else None
    before = heartbeat.is_measured
    heartbeat.is_measured = before or rows is not None
    try:
        yield rows
    finally:
        heartbeat.is_measured = before


def counted(model: keras.Model, rows: tf.Variable):
    """The training step of a model without a strategy, with its rows counted."""
    train_step = model.train_step

    @functools.wraps(train_step)
    def counting(data):
        rows.assign_add(tf.cast(num_rows(counting_component(data)), tf.int64))
        return train_step(data)

    return counting
