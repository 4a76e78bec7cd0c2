"""Steps of the user's own, of which a trace may tell that their losses need no look at numbers."""

import contextlib
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.tasks import seed, strategy_scope

mean_squares = keras.losses.MeanSquaredError()


class Own(keras.Model):
    """A model whose step takes the gradient of one of many losses."""

    def __init__(self, kind: str, in_function: bool):
        inputs = layers.Input((4,))
        regularizer = "l2" if kind == "regularized" else None
        super().__init__(inputs, layers.Dense(2, kernel_regularizer=regularizer)(inputs))
        self.kind, self.in_function = kind, in_function
        self.factor = self.add_weight(name="factor", initializer="ones", trainable=False)

    def train_step(self, data):
        taken = self.taken_in_a_function if self.in_function else self.taken
        loss, gradients = taken(*data)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}

    def taken(self, x, y):
        with tf.GradientTape() as tape:
            loss = getattr(self, self.kind)(x, y, self(x, training=True))
        return loss, tape.gradient(loss, self.trainable_variables)

    taken_in_a_function = tf.function(taken)

    def computed(self, x, y, outputs):
        return self.compute_loss(x, y, outputs)

    def an_object(self, x, y, outputs):
        return mean_squares(y, outputs)

    def several(self, x, y, outputs):
        return (
            0.5 * mean_squares(y, outputs)
            + tf.cast(self.factor, "float32") * self.compute_loss(x, y, outputs) / 3.0
            + 1
        )

    def one_of_whole_batches(self, x, y, outputs):
        return keras.losses.Dice()(tf.sigmoid(y), tf.sigmoid(outputs)) + mean_squares(y, outputs)

    def regularized(self, x, y, outputs):
        return self.compute_loss(x, y, outputs)

    def a_sum(self, x, y, outputs):
        return tf.reduce_sum(tf.square(y - outputs))

    def partly_a_sum(self, x, y, outputs):
        return mean_squares(y, outputs) * tf.reduce_sum(tf.square(outputs))

    def a_sum_of_keras_s(self, x, y, outputs):
        return tf.reduce_sum(keras.losses.MeanSquaredError(reduction=None)(y, outputs))

    def a_product(self, x, y, outputs):
        return mean_squares(y, outputs) * self.compute_loss(x, y, outputs)

    def a_share(self, x, y, outputs):
        return 1.0 / mean_squares(y, outputs)

    def a_branch(self, x, y, outputs):
        loss = mean_squares(y, outputs)
        if tf.reduce_mean(x) > 100.0:
            loss = 2.0 * loss
        return loss

    def a_mean(self, x, y, outputs):
        return tf.reduce_mean(tf.square(y - outputs))

    def a_square(self, x, y, outputs):
        return mean_squares(y, outputs) ** 2


def train(kind: str, distributed: bool, in_function: bool = False) -> dict:
    """Weights after a short training, how often a batch was looked at, and what was said of losses."""
    seed(distributed)
    random = np.random.default_rng(3)
    x = random.normal(size=(24, 4)).astype("float32")
    looks: list = []
    with strategy_scope(distributed), noted(looks, distributed), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = Own(kind, in_function)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(x, x[:, :2], batch_size=8, epochs=2, verbose=0)
    return {
        "weights": model.get_weights(),
        "looks": len(looks),
        "said": [text for each in said if "a loss in" in (text := str(each.message))],
    }


def noted(looks: list, distributed: bool):
    """Notes each batch that is looked at."""
    if not distributed:
        return contextlib.nullcontext()
    from keras_par.seam.call import probe

    original = probe.peek

    def peek(*args):
        looks.append(args)
        return original(*args)

    return mock.patch.object(probe, "peek", peek)
