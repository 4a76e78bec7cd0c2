"""Trainings that are more than values of `tests/trainings.py`, each run by plain Keras and by N ranks, which end alike.

Nothing here imports keras_par: the same lines run in both.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

CASES: dict[str, "Case"] = {}


@dataclass(frozen=True)
class Case:
    """A model, its data and how it is trained.

    Args:
        model: returns the compiled model.
        data: returns the arguments of `fit` that are data.
        fit: further arguments of `fit`.
        tolerance: relative distance of all weights that float rounding explains after these steps.
        floatx: what Keras computes in; float64 where a model blows the rounding of float32 up.
    """

    model: Callable[[], keras.Model]
    data: Callable[[], dict[str, Any]]
    fit: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-6
    floatx: str = "float32"

    def precision(self):
        """Within it Keras computes in the case's dtype."""
        return in_dtype(self.floatx)


@contextlib.contextmanager
def in_dtype(floatx: str) -> Iterator[None]:
    """Within it Keras computes in a dtype."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])


DOUBLE: dict[str, Any] = {"floatx": "float64", "tolerance": 1e-10}


def case(name: str, data, tolerance: float = 1e-6, double: bool = False, **fit):
    def register(model):
        CASES[name] = Case(model, data, fit, **(DOUBLE if double else {"tolerance": tolerance}))
        return model

    return register


# Data: 75 rows in batches of 16 leave a last batch of 11, which neither 2 nor 4 ranks divide; 4 epochs are 20 steps.


def rows(num_rows: int = 75, seed: int = 0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, 8)).astype("float32")
    y = generator.integers(0, 3, num_rows)
    return x, y


def arrays(num_rows: int = 75):
    x, y = rows(num_rows)
    return {"x": x, "y": y, "batch_size": 16, "epochs": 4}


def dataset():
    """A shuffled dataset, whose order TensorFlow's global seed decides; ranks must share that one."""
    tf.random.set_seed(7)
    x, y = rows()
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(75, seed=5).batch(16), "epochs": 4}


def static_dataset():
    x, y = rows()
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True), "epochs": 4}


def one_left_over():
    """65 rows: the last batch has 1, fewer than 2 ranks."""
    return arrays(65)


def network(*extra, units: int = 3) -> keras.Model:
    return keras.Sequential([layers.Input((8,)), layers.Dense(16, "tanh"), *extra, layers.Dense(units)])


def crossentropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def compiled(optimizer, model=None, loss=None, **options) -> keras.Model:
    model = model or network()
    model.compile(optimizer, loss or crossentropy(), **options)
    return model


# Optimizers, with a ragged last batch.


@case("adam", arrays)
def _():
    return compiled(keras.optimizers.Adam(1e-2, global_clipnorm=0.3))


@case("sgd-momentum", arrays)
def _():
    return compiled(keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.3))


@case("accumulation", arrays)
def _():
    return compiled(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3, global_clipnorm=0.2))


@case("ema-accumulation-class-weight", arrays, class_weight={0: 0.5, 1: 2.0, 2: 1.0})
def _():
    return compiled(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, gradient_accumulation_steps=2))


def sequences():
    generator = np.random.default_rng(4)
    tokens = generator.integers(1, 20, (75, 6)) * (np.arange(6) < generator.integers(1, 7, (75, 1)))
    return {"x": tokens, "y": generator.integers(0, 3, (75, 6)), "batch_size": 16, "epochs": 4}


@case("loss-masked", sequences)
def _():
    model = keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8, mask_zero=True), layers.Dense(3)])
    return compiled(keras.optimizers.SGD(0.5), model, metrics=["accuracy"])


@case("embedding-adam", sequences)
def _():
    model = keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8), layers.LSTM(5), layers.Dense(6)])
    return compiled(keras.optimizers.Adam(1e-2), model, "mse")


@case("embedding-clipped", sequences)
def _():
    model = keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8), layers.Flatten(), layers.Dense(6)])
    return compiled(keras.optimizers.SGD(0.1, momentum=0.5, global_clipnorm=0.1), model, "mse")


@case("metrics", arrays)
def _():
    auc = keras.metrics.AUC(multi_label=True, num_labels=3, from_logits=True)
    model = network()
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", auc, keras.metrics.MeanIoU(3, sparse_y_true=False, sparse_y_pred=False)],
    )
    return model


CASES["metrics"] = Case(
    CASES["metrics"].model, lambda: {**arrays(), "y": np.eye(3, dtype="float32")[rows()[1]]}, {}, 1e-6
)


# Layers with state or without gradients.


@case("batchnorm-synchronized", arrays, double=True)
def _():
    return compiled(keras.optimizers.SGD(0.1), network(layers.BatchNormalization(synchronized=True, momentum=0.8)))


def images():
    generator = np.random.default_rng(3)
    x = generator.normal(2.0, 1.0, size=(50, 6, 6, 2)).astype("float32")
    return {"x": x, "y": generator.integers(0, 3, 50), "batch_size": 16, "epochs": 3}


@case("batchnorm-synchronized-conv", images, double=True)
def _():
    model = keras.Sequential(
        [
            layers.Input((6, 6, 2)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(synchronized=True),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(3),
        ]
    )
    return compiled(keras.optimizers.SGD(0.05), model)


@case("unreached-weight", arrays)
def _():
    inputs = layers.Input((8,))
    hidden = layers.Dense(16, "tanh")(inputs)
    outputs = {"used": layers.Dense(3)(hidden), "unused": layers.Dense(2)(hidden)}
    return compiled(keras.optimizers.Adam(1e-2), keras.Model(inputs, outputs), {"used": crossentropy(), "unused": None})


CASES["unreached-weight"] = Case(
    CASES["unreached-weight"].model,
    lambda: {**arrays(), "y": {"used": rows()[1], "unused": np.zeros((75, 2), "float32")}},
)


def nested():
    x, y = rows()
    return {
        "x": {"a": x, "b": x[:, :2]},
        "y": {"class": y, "value": x[:, :1] ** 2},
        "batch_size": 16,
        "epochs": 4,
    }


@case("nested", nested)
def _():
    inputs = {"a": layers.Input((8,), name="a"), "b": layers.Input((2,), name="b")}
    hidden = layers.Dense(16, "tanh")(layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, {"class": layers.Dense(3)(hidden), "value": layers.Dense(1)(hidden)})
    model.compile(
        keras.optimizers.SGD(0.05),
        {"class": crossentropy(), "value": "mse"},
        loss_weights={"class": 1.0, "value": 0.3},
        metrics={"class": ["accuracy"], "value": ["mae"]},
    )
    return model


@case("not-built", arrays)
def _():
    return compiled(keras.optimizers.Adam(1e-2), keras.Sequential([layers.Dense(16, "tanh"), layers.Dense(3)]))


# Steps.


class OwnStep(keras.Model):
    """A training step as Keras's guide writes it: no scale_loss, own metrics."""

    def __init__(self):
        super().__init__()
        self.network = network()
        self.own_loss = keras.metrics.Mean(name="own")

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.own_loss.update_state(loss, sample_weight=tf.shape(x)[0])
        return {"own": self.own_loss.result()}

    @property
    def metrics(self):
        return [self.own_loss]


@case("own-step", arrays)
def _():
    return compiled(keras.optimizers.Adam(1e-2, global_clipnorm=0.3), OwnStep())


class TwoOptimizers(keras.Model):
    """Two optimizers that take turns within one step, as a GAN's do."""

    def __init__(self):
        super().__init__()
        self.first, self.second = network(), network()
        self.first.build((None, 8))
        self.second.build((None, 8))

    def compile(self):
        super().compile(loss=crossentropy())
        self.optimizer = None
        self.first_optimizer = keras.optimizers.SGD(0.1)
        self.second_optimizer = keras.optimizers.Adam(1e-2)

    def train_step(self, data):
        x, y = data
        logs = {}
        for name, part in (("first", self.first), ("second", self.second)):
            with tf.GradientTape() as tape:
                other = self.first(x) if part is self.second else 0.0
                loss = self.compute_loss(y=y, y_pred=part(x) + other)
            gradients = tape.gradient(loss, part.trainable_variables)
            getattr(self, f"{name}_optimizer").apply(gradients, part.trainable_variables)
            logs[name] = loss
        return logs


@case("two-optimizers", static_dataset)
def _():
    model = TwoOptimizers()
    model.compile()
    return model


class ScaledByHand(keras.optimizers.SGD):
    """An optimizer with a way of its own to scale losses, which asks Keras's or does not."""

    def __init__(self, asks: bool):
        super().__init__(1e-2, momentum=0.9)
        self.asks = asks

    def scale_loss(self, loss):
        return 8.0 * (super().scale_loss(loss) if self.asks else loss)

    def apply(self, grads, trainable_variables=None):
        return super().apply([gradient / 8.0 for gradient in grads], trainable_variables)


@case("own-scale", arrays)
def _():
    return compiled(ScaledByHand(asks=False))


@case("own-scale-of-keras", arrays)
def _():
    return compiled(ScaledByHand(asks=True))


@case("jit-loss-scale", arrays)
def _():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2))
    return compiled(optimizer, jit_compile=True)


@case("jit-steps-per-execution", static_dataset)
def _():
    return compiled(keras.optimizers.Adam(1e-2), steps_per_execution=2, jit_compile=True)


@case("one-row-left-over", one_left_over)
def _():
    return compiled(keras.optimizers.Adam(1e-2, global_clipnorm=0.3), metrics=["accuracy"])


@case("validation-split", arrays, validation_split=0.3, validation_freq=2)
def _():
    return compiled(keras.optimizers.Adam(1e-2), metrics=["accuracy"])


@case("no-shuffle-sgd", arrays, shuffle=False)
def _():
    return compiled(keras.optimizers.SGD(0.05))


@case("no-shuffle-sgd-doubled", arrays, shuffle=False)
def _():
    return compiled(keras.optimizers.SGD(0.1))


def sparse_and_ragged():
    x, y = rows()
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(75 * 3) % 7, np.full(75, 3))
    dense = tf.data.Dataset.from_tensor_slices((x, ragged, y)).batch(16)
    return {"x": dense.map(lambda x, r, y: ({"x": tf.sparse.from_dense(x), "r": r}, y)), "epochs": 4}


@case("sparse-and-ragged", sparse_and_ragged)
def _():
    inputs = {"x": layers.Input((8,), sparse=True, name="x"), "r": layers.Input((None,), ragged=True, name="r")}
    total = layers.Lambda(lambda r: tf.cast(tf.reduce_sum(r, 1, keepdims=True), tf.float32), (1,))(inputs["r"])
    joined = layers.Concatenate()([layers.Dense(16, "tanh")(inputs["x"]), total])
    # SGD, because plain Keras's Adam squares the rows of a sparse input's gradient one by one, and ranks that meet
    # the same row have two of them.
    return compiled(keras.optimizers.SGD(0.01), keras.Model(inputs, layers.Dense(3)(joined)))


if hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.15

    @case("multi-optimizer", arrays)
    def _():
        model = network()
        by_path = keras.optimizers.OptimizerMap(default_optimizer=keras.optimizers.SGD(0.1))
        by_path[f"{model.layers[-1].name}/.*"] = keras.optimizers.Adam(1e-2)
        return compiled(keras.optimizers.MultiOptimizer(by_path), model)


@case("bfloat16", arrays, tolerance=2e-2)
def _():
    keras.config.set_dtype_policy("bfloat16")
    return compiled(keras.optimizers.SGD(0.1))


class Reconstruct(keras.Model):
    """A model without targets, whose loss only its own step can compute, and an optimizer in a dict."""

    def __init__(self):
        super().__init__()
        self.network = network(units=8)
        self.network.build((None, 8))
        self.own = {"optimizer": keras.optimizers.Adam(1e-2)}

    def call(self, x):
        return self.network(x)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=x, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.own["optimizer"].apply(gradients, self.trainable_variables)
        return {"loss": loss}


@case("own-step-without-targets", lambda: {"x": rows(64)[0], "batch_size": 16, "epochs": 4})
def _():
    model = Reconstruct()
    model.compile(loss="mse")
    return model
