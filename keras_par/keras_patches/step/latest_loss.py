"""Keeps the loss of the newest training step, which Keras itself only keeps as a running mean over the epoch."""

import keras
import tensorflow as tf
from keras.src.utils.tracking import DotNotTrackScope

from keras_par.sharding import step as steps


class NewestLoss(keras.metrics.Mean):
    """Keras's loss tracker that also remembers its newest value, weighted by this rank's rows."""

    def __init__(self):
        super().__init__(name="loss")
        # A plain variable, not a metric's: it is neither summed into logs nor undone.
        self.newest = tf.Variable([0.0, 0.0], trainable=False, dtype=tf.float64)

    def update_state(self, values, sample_weight=None):
        step = steps.current()
        weight = tf.cast(1 if step is None else step.local, tf.float64)
        self.newest.assign([tf.cast(tf.reduce_mean(values), tf.float64) * weight, weight])
        return super().update_state(values, sample_weight)


def track(model: keras.Model) -> NewestLoss:
    """Makes the compiled `model` track its newest loss from the next `fit` on, and returns where it stands."""
    if not isinstance(model._loss_tracker, NewestLoss):
        with DotNotTrackScope():  # the tracker is listed once among the model's metrics, as Keras's own is
            model._loss_tracker = NewestLoss()
        model.train_function = model.test_function = None
    return model._loss_tracker
