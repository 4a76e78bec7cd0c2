"""Trainings whose layers depend on what the whole batch has: batch normalization, and tables that all rows look up.

They are cases of tests/cases.py, which they add to. Nothing here imports keras_par.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cases import CASES as CASES
from tests.cases import arrays, case, compiled, images, network, one_left_over, rows, sequences

SGD = keras.optimizers.SGD
Norm = layers.BatchNormalization


# Batch normalization as it is made without options: by the global batch's rows, since that is what one process has.


@case("batchnorm", one_left_over, double=True)
def _():
    return compiled(SGD(0.1, momentum=0.9), network(Norm(momentum=0.8)))


@case("batchnorm-conv-jit", images, double=True)
def _():
    parts = [layers.Input((6, 6, 2)), layers.Conv2D(4, 3), Norm(momentum=0.8), layers.ReLU(), layers.Flatten()]
    return compiled(SGD(0.05), keras.Sequential([*parts, layers.Dense(3)]), jit_compile=True)


def far_from_zero():
    return {**arrays(), "x": rows()[0] + 1000.0}


@case("batchnorm-far-from-zero", far_from_zero, tolerance=1e-4)
def _():
    return compiled(SGD(0.1), keras.Sequential([layers.Input((8,)), Norm(momentum=0.5), layers.Dense(3)]))


def masked_sequences():
    data = sequences()
    return {**data, "x": data["x"][:65], "y": data["y"][:65]}


@case("batchnorm-masked", masked_sequences, double=True)
def _():
    parts = [layers.Input((6,)), layers.Embedding(20, 8, mask_zero=True), Norm(momentum=0.8), layers.Dense(3)]
    return compiled(SGD(0.5), keras.Sequential(parts))


@case("batchnorm-axis-renorm", images, double=True)
def _():
    parts = [layers.Input((6, 6, 2)), Norm(axis=1, momentum=0.7), layers.Conv2D(3, 3), Norm(renorm=True)]
    return compiled(SGD(0.05), keras.Sequential([*parts, layers.Flatten(), layers.Dense(3)]))


@case("batchnorm-mixed", one_left_over, tolerance=2e-2)
def _():
    half = {"dtype": "mixed_bfloat16"}
    parts = [layers.Dense(16, "tanh", **half), Norm(momentum=0.8, **half), layers.Dense(3, **half)]
    return compiled(SGD(0.1), keras.Sequential([layers.Input((8,)), *parts]), steps_per_execution=2)


class Halved(Norm):
    """A subclass, which does something of its own around."""

    def call(self, inputs, training=None, mask=None):
        return 0.5 * super().call(inputs, training=training, mask=mask)


@case("batchnorm-fine-tuned", arrays, double=True)
def _():
    """A frozen normalization in a frozen base, a trained one that is called twice, and a subclass, eagerly."""
    base = keras.Sequential([layers.Input((8,)), layers.Dense(8, "tanh"), Norm()], name="base")
    base.trainable = False
    inputs, norm = layers.Input((8,)), Norm(momentum=0.8)
    x = layers.Add()([norm(base(inputs, training=False)), norm(inputs)])
    model = keras.Model(inputs, layers.Dense(3)(Halved(momentum=0.8)(x)))
    return compiled(SGD(0.1), model, run_eagerly=True)


class NormedCell(layers.Layer):
    """A recurrent cell that normalizes."""

    def __init__(self, units: int):
        super().__init__()
        self.state_size = units
        self.dense, self.norm = layers.Dense(units, "tanh"), Norm(momentum=0.8)

    def build(self, shape):
        self.dense.build((None, shape[-1] + self.state_size))
        self.norm.build((None, self.state_size))
        self.built = True

    def call(self, inputs, states, training=False):
        output = self.norm(self.dense(ops.concatenate([inputs, states[0]], -1)), training=training)
        return output, [output]


@case("batchnorm-unrolled", sequences, double=True)
def _():
    parts = [layers.Input((6,)), layers.Embedding(20, 8), layers.RNN(NormedCell(5), unroll=True), layers.Dense(6)]
    return compiled(SGD(0.1), keras.Sequential(parts), "mse")


# Tables of which all rows look up the same, under optimizers that square gradients.


class Positions(layers.Layer):
    """Tokens and their positions, as keras.io's TokenAndPositionEmbedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = layers.Embedding(20, 8), layers.Embedding(6, 8)

    def build(self, shape):
        self.tokens.build(shape)
        self.places.build(shape)
        self.built = True

    def call(self, x):
        return self.tokens(x) + self.places(ops.arange(0, ops.shape(x)[-1], 1))


def positional(length: int | None, layer: layers.Layer | None = None) -> keras.Model:
    parts = [layers.Input((length,), dtype="int32"), layer or Positions(), layers.GlobalAveragePooling1D()]
    return keras.Sequential([*parts, layers.Dense(6)])


@case("positions-adam", sequences, double=True)
def _():
    return compiled(keras.optimizers.Adam(1e-2, global_clipnorm=0.3), positional(6), "mse")


@case("positions-rmsprop-jit", sequences, double=True)
def _():
    return compiled(keras.optimizers.RMSprop(1e-2), positional(6), "mse", jit_compile=True)


def padded():
    """Batches that are as long as their longest row, which only running tells."""
    data = sequences()
    lengths = 2 + np.arange(75) // 16
    rows = tf.data.Dataset.from_tensor_slices((data["x"], lengths, data["y"])).map(lambda x, n, y: (x[:n], y))
    return {"x": rows.padded_batch(16, ([None], [6])), "epochs": 3}


@case("positions-of-padded-rows", padded, double=True)
def _():
    return compiled(keras.optimizers.Adam(1e-2), positional(None), "mse")


class OneTable(layers.Layer):
    """Tokens and places, some of them twice, are rows of one table."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(30, 8)

    def build(self, shape):
        self.table.build(shape)
        self.built = True

    def call(self, x):
        return self.table(x) + self.table(np.array([20, 21, 22, 22, 5, 6]))


@case("one-table-adam", sequences, double=True)
def _():
    return compiled(keras.optimizers.Adam(1e-2), positional(6, OneTable()), "mse")


def sparse_rows():
    x, y = rows(65)
    x = tf.sparse.from_dense(np.where(x > 0.4, x, 0))
    return {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(16), "epochs": 3}


@case("sparse-input-adam", sparse_rows, double=True)
def _():
    return compiled(
        keras.optimizers.Adam(1e-2),
        keras.Sequential([layers.Input((8,), sparse=True), layers.Dense(16, "tanh"), layers.Dense(3)]),
    )
