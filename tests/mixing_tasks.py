"""Steps that pair rows of a batch, as mixup does, and those that look as if they did."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cases import compiled, rows
from tests.random_tasks import logged
from tests.tasks import seed, strategy_scope


def permuted(x):
    order = keras.random.shuffle(ops.arange(ops.shape(x)[0]), seed=5)
    return tf.gather(x, order)


def by_noise(x):
    return tf.gather(x, tf.argsort(tf.random.stateless_uniform([tf.shape(x)[0]], [1, 2])))


PAIRS = {
    "x[::-1]": lambda x: x[::-1],
    "tf.reverse": lambda x: tf.reverse(x, [0]),
    "ops.flip": lambda x: ops.flip(x, axis=0),
    "tf.roll": lambda x: tf.roll(x, 1, 0),
    "ops.roll": lambda x: ops.roll(x, 1, axis=0),
    "transposed": lambda x: tf.transpose(tf.reverse(tf.transpose(x), [1])),
    "shuffled": lambda x: keras.random.shuffle(x, seed=5),
    "permuted": permuted,
    "by noise": by_noise,
    "next row": lambda x: tf.gather(x, (tf.range(tf.shape(x)[0]) + 1) % tf.shape(x)[0]),
    "sorted": lambda x: ops.sort(x, axis=0),
    "cumsum": lambda x: ops.cumsum(x, axis=0),
    "similar": lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x),
    "in a branch": lambda x: tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.reverse(x, [0]), lambda: x),
}

HARMLESS = {
    "columns": lambda x: x[:, ::-1],
    "rolled columns": lambda x: tf.roll(x, 1, 1),
    "sorted columns": lambda x: ops.sort(x, axis=-1),
    "cumsum of columns": lambda x: ops.cumsum(x, axis=1),
    "every other row twice": lambda x: tf.concat([x[::2], x[1::2]], 0)[: tf.shape(x)[0]],
    "gathered columns": lambda x: tf.gather(x, [1, 0, 2, 3, 4, 5, 6, 7], axis=1),
    "time": lambda x: tf.transpose(tf.reverse(tf.transpose(tf.reshape(x, [-1, 4, 2]), [1, 0, 2]), [0]), [1, 0, 2])[
        :, :, 0:1
    ],
    "looked up": lambda x: tf.gather(tf.eye(8), tf.cast(x[:, 0] > 0, tf.int32)),
    "masked": lambda x: tf.boolean_mask(x, tf.reduce_sum(x, 1) > -1e9),
}


class Pairing(keras.Model):
    """Mixes rows with others of the batch, and leaves the step to Keras."""

    def __init__(self, inner, pair):
        super().__init__()
        self.inner, self.pair = inner, pair

    def call(self, x):
        return self.inner(x)

    def train_step(self, data):
        x, y = data
        other = self.pair(x)
        if other.shape.rank == 3:
            other = tf.reduce_sum(other, 1)
        return super().train_step((0.7 * x + 0.3 * tf.reduce_mean(other, 1, keepdims=True), y))


def pairing(kind: str, static: bool) -> list[str]:
    """What is logged of a step that pairs rows like this, in two epochs."""
    x, y = rows(32)
    seed(True)
    pair = {**PAIRS, **HARMLESS}[kind]
    with logged() as messages, strategy_scope(True):
        inner = keras.Sequential([layers.Input((8,)), layers.Dense(3)])
        model = compiled(keras.optimizers.SGD(0.1), Pairing(inner, pair))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=static)
        model.fit(data, epochs=2, verbose=0)
    return messages


LAYERS = {
    "MixUp": (True, lambda: layers.MixUp(seed=2)),
    "CutMix": (True, lambda: layers.CutMix(seed=2)),
    "RandomFlip": (False, lambda: layers.RandomFlip(seed=2)),
    "RandomRotation": (False, lambda: layers.RandomRotation(0.1, seed=2)),
    "RandomZoom": (False, lambda: layers.RandomZoom(0.1, seed=2)),
    "RandomTranslation": (False, lambda: layers.RandomTranslation(0.1, 0.1, seed=2)),
    "RandomCrop": (False, lambda: layers.RandomCrop(8, 8, seed=2)),
    "RandomContrast": (False, lambda: layers.RandomContrast(0.1, seed=2)),
    "RandomErasing": (False, lambda: layers.RandomErasing(seed=2)),
    "RandAugment": (False, lambda: layers.RandAugment(seed=2)),
    "AutoContrast": (False, lambda: layers.AutoContrast()),
    "Equalization": (False, lambda: layers.Equalization()),
    "Bidirectional": (
        False,
        lambda: keras.Sequential(
            [layers.Reshape((8, 24)), layers.Bidirectional(layers.LSTM(12, return_sequences=True))]
        ),
    ),
    "attention": (
        False,
        lambda: keras.Sequential([layers.Reshape((8, 24)), OnItself(2, 4)]),
    ),
}


class OnItself(layers.MultiHeadAttention):
    def call(self, x):
        return super().call(x, x)

    def build(self, shape):
        super().build(shape, shape)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


def layer(kind: str) -> list[str]:
    """What is logged of a model that begins with one of Keras's layers, and has its losses and metrics."""
    random = np.random.default_rng(1)
    x, y = random.uniform(0, 255, (32, 8, 8, 3)).astype("float32"), random.integers(0, 3, 32)
    seed(True)
    with logged() as messages, strategy_scope(True):
        inputs = layers.Input((8, 8, 3))
        first = LAYERS[kind][1]()
        outputs = layers.Dense(3)(layers.Flatten()(first(inputs)))
        model = keras.Model(inputs, outputs)
        metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
        compiled(keras.optimizers.SGD(1e-4), model, metrics=metrics).fit(x, y, batch_size=16, epochs=1, verbose=0)
    return messages
