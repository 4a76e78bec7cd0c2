"""Learns without labels by SimCLR's loss, which compares each row of a batch with the rows of all ranks.

    python examples/contrastive.py
    keras-par run -np 2 python examples/contrastive.py

A batch of 64 rows has 126 others to tell a row's second view from, on any number of ranks: `kp.ops.all_gather` brings
the other ranks' rows, and its gradient goes back to them. Both runs end with the same numbers.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_par as kp

TEMPERATURE = 0.2


class Contrastive(keras.Model):
    """Pulls two views of a row together, and apart from those of all other rows."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Input((20,)), layers.Dense(32, "relu"), layers.Dense(8)])
        self.tracker = keras.metrics.Mean(name="contrast")

    def call(self, x):
        return tf.math.l2_normalize(self.encoder(x), axis=1)

    def train_step(self, views):
        with tf.GradientTape() as tape:
            one, two = self(views[0]), self(views[1])
            loss = 0.5 * (contrast(one, two) + contrast(two, one))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.tracker.update_state(loss)
        return {"contrast": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]


def contrast(own, partners):
    """The mean over this rank's rows of how hard each one's partner is to find among the rows of all ranks."""
    everything = tf.concat([kp.ops.all_gather(partners), kp.ops.all_gather(own)], 0)
    num_rows = tf.shape(everything, tf.int64)[0] // 2
    place = kp.ops.row_offset(own) + tf.range(tf.shape(own, tf.int64)[0])
    similar = tf.matmul(own, everything, transpose_b=True) / TEMPERATURE
    similar -= 1e9 * tf.one_hot(num_rows + place, tf.shape(everything)[0])  # a row is not compared with itself
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(place, similar, from_logits=True))


def two_views(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of four kinds, each seen twice through noise."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(4, 20))[generator.integers(0, 4, num_rows)] + 0.5 * generator.normal(
        size=(num_rows, 20)
    )
    return tuple((rows + 0.3 * generator.normal(size=rows.shape)).astype("float32") for _ in range(2))


keras.utils.set_random_seed(1)
strategy = kp.DataParallel()
with strategy.scope():
    model = Contrastive()
    model.compile(keras.optimizers.Adam(1e-3))
history = model.fit(
    tf.data.Dataset.from_tensor_slices((two_views(1000),)).map(lambda views: views).batch(64), epochs=3, verbose=0
)
if kp.rank() == 0:
    print(f"{kp.size()} rank(s), contrast {[round(value, 4) for value in history.history['contrast']]}")
