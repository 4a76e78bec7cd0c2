"""Trainings of tables whose rows come up several times in a batch; ranks may add these up in orders of their own."""

import contextlib
from unittest import mock

import keras
import numpy as np
from keras import layers, optimizers

from tests.tasks import seed, strategy_scope

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(1e-2),
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adagrad(0.1), initial_scale=8.0),
}


@contextlib.contextmanager
def without_order(shared: bool):
    """Within it each rank adds up slices in an order of its own, as GPUs do."""
    import tensorflow as tf

    import keras_par as kp
    from keras_par.seam.update import variable_update
    from keras_par.sharding import copies

    original = variable_update.update_stored

    def in_own_order(update, optimizer, pairs, learning_rate):
        pairs = [(turned(each) if isinstance(each, tf.IndexedSlices) else each, variable) for each, variable in pairs]
        original(update, optimizer, pairs, learning_rate)

    def turned(slices):
        order = tf.argsort(tf.sin(tf.range(tf.cast(tf.size(slices.indices), tf.float32)) * (1.0 + kp.rank())))
        return tf.IndexedSlices(tf.gather(slices.values, order), tf.gather(slices.indices, order), slices.dense_shape)

    with (
        mock.patch.object(variable_update, "update_stored", in_own_order),
        mock.patch.object(copies, "repeats_bits", lambda: not shared),
    ):
        yield


def train(name: str, distributed: bool, shared: bool = True) -> list[np.ndarray]:
    """Weights and slots after two epochs of a table of eight rows, which each batch has many times over."""
    seed(distributed)
    keras.config.set_dtype_policy("float64")
    random = np.random.default_rng(0)
    x, y = random.integers(0, 8, (60, 6)), random.normal(size=(60, 3))
    with strategy_scope(distributed), without_order(shared) if distributed else contextlib.nullcontext():
        model = keras.Sequential([layers.Input((6,)), layers.Embedding(8, 4), layers.Flatten(), layers.Dense(3)])
        model.compile(OPTIMIZERS[name](), "mse")
        model.fit(x, y, batch_size=12, epochs=2, verbose=0)
    return [np.asarray(value) for value in (*model.get_weights(), *model.optimizer.variables)]
