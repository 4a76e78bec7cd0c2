"""Steps of the user's own, of which a trace may tell that their losses need no look at numbers."""

import contextlib
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.random_tasks import logged
from tests.tasks import seed, strategy_scope

mean_squares = keras.losses.MeanSquaredError()


class Own(keras.Model):
    """A model whose step takes the gradient of one of many losses."""

    def __init__(self, kind: str, in_function: bool | str):
        inputs = layers.Input((4,))
        regularizer = "l2" if kind == "regularized" else None
        super().__init__(inputs, layers.Dense(2, kernel_regularizer=regularizer)(inputs))
        self.kind, self.in_function = kind, in_function
        self.traces, self.is_broken = 0, False
        self.tracker = keras.metrics.Mean(name="tracked")
        self.own_optimizer = keras.optimizers.Adam(0.01)
        self.factor = self.add_weight(name="factor", initializer="ones", trainable=False)

    def train_step(self, data):
        self.traces += 1
        if self.is_broken:
            raise ValueError("broken")
        if self.in_function == "whole":
            return {"loss": self.whole(*data), "tracked": self.tracker.result()}
        taken = self.taken_in_a_function if self.in_function is True else self.taken
        loss, gradients = taken(*data)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "tracked": self.tracker.result()}

    def taken(self, x, y):
        with tf.GradientTape() as tape:
            loss_of = self.in_a_function if self.in_function == "loss" else getattr(self, self.kind)
            loss = loss_of(x, y, self(x, training=True))
        return loss, tape.gradient(loss, self.trainable_variables)

    taken_in_a_function = tf.function(taken)

    @tf.function
    def in_a_function(self, x, y, outputs):
        loss = getattr(self, self.kind)(x, y, outputs)
        self.tracker.update_state(loss)
        return loss

    @tf.function
    def whole(self, x, y):
        loss, gradients = self.taken(x, y)
        self.own_optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return loss

    def test_step(self, data):
        x, y = data
        self.in_a_function(x, y, self(x, training=False))
        return {"tracked": self.tracker.result()}

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

    def a_reduced_sum(self, x, y, outputs):
        return keras.losses.MeanSquaredError(reduction="sum")(y, outputs)

    def a_mean_by_hand(self, x, y, outputs):
        return keras.losses.MeanSquaredError(reduction="sum")(y, outputs) / tf.cast(tf.shape(x)[0], "float32")

    def a_sum_by_hand(self, x, y, outputs):
        return mean_squares(y, outputs) * tf.cast(tf.shape(x)[0], "float32")

    def deep(self, x, y, outputs):
        number = tf.exp(self.trainable_variables[0])
        for _ in range(30):
            number = number / tf.reduce_sum(number, 0, keepdims=True)
        loss = mean_squares(y, outputs) + tf.reduce_sum(number * number)
        for _ in range(1500):
            loss = loss + 0.001
        return loss

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

    def a_sum_by_a_static_number(self, x, y, outputs):
        return mean_squares(y, outputs) * x.shape[0]

    def a_mean(self, x, y, outputs):
        return tf.reduce_mean(tf.square(y - outputs))

    def a_square(self, x, y, outputs):
        return mean_squares(y, outputs) ** 2


class Decorated(Own):
    """Its step is a function of TensorFlow's itself."""

    train_step = tf.function(Own.train_step)


def train(
    kind: str,
    distributed: bool,
    in_function: bool | str = False,
    num_rows: int = 24,
    options: dict | None = None,
    **compiled,
) -> dict:
    """Weights after a short training, how often a batch was looked at, and what was said of losses."""
    seed(distributed)
    random = np.random.default_rng(3)
    x = random.normal(size=(num_rows, 4)).astype("float32")
    looks: list = []
    with (
        logged() as messages,
        strategy_scope(distributed, **(options or {})),
        noted(looks, distributed),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        model = (Decorated if in_function == "step" else Own)(kind, in_function)
        model.compile(keras.optimizers.SGD(0.01), "mse", **compiled)
        history = model.fit(x, x[:, :2], batch_size=8, epochs=2, verbose=0).history
        looks_of_training = len(looks)
        evaluated = model.evaluate(x, x[:, :2], batch_size=8, verbose=0)
    return {
        "weights": model.get_weights(),
        "logged": [text for text in messages if "is not looked at" in text],
        "tracked": [*history["tracked"], evaluated],
        "looks": looks_of_training,
        "traces": model.traces,
        "said": [text for each in said if "a loss in" in (text := str(each.message))],
    }


class Priced(layers.Dense):
    """Adds what it was made with, eagerly."""

    def build(self, shape):
        super().build(shape)
        with tf.init_scope():
            self.price = tf.constant(0.5)

    def call(self, x):
        self.add_loss(self.price)
        return super().call(x)


def train_with_constant(distributed: bool) -> list[float]:
    """Losses of a model that adds a constant to its loss."""
    seed(distributed)
    x = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
    with strategy_scope(distributed):
        model = keras.Sequential([layers.Input((4,)), Priced(2)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model.fit(x, x[:, :2], batch_size=8, epochs=2, verbose=0).history["loss"]


def train_repaired(distributed: bool) -> list[np.ndarray]:
    """Weights of a training whose first `fit` failed in the step, before that was repaired; its loss is a sum."""
    seed(distributed)
    x = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
    with strategy_scope(distributed):
        model = Own("a_sum", in_function=False)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.is_broken = True
        with contextlib.suppress(ValueError):
            model.fit(x, x[:, :2], batch_size=8, verbose=0, shuffle=False)
        model.is_broken = False
        model.fit(x, x[:, :2], batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


def noted(looks: list, distributed: bool):
    """Notes each batch that is looked at."""
    if not distributed:
        return contextlib.nullcontext()
    from keras_par.keras_patches.trainer import scalar_probe

    original = scalar_probe.peek

    def peek(*args):
        looks.append(args)
        return original(*args)

    return mock.patch.object(scalar_probe, "peek", peek)
