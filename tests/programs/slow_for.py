"""Trains a while as a script does whose time goes to one thing: slow_for.py data|reduce|rank|callback|start."""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

import keras_par as kp

[reason] = sys.argv[1:]
kp.init()
WIDE, STEPS = (2048 if reason == "reduce" else 64), {"start": 3, "reduce": 100}.get(reason, 60)
rows = np.random.default_rng(1).normal(size=(2 if reason == "reduce" else 64, WIDE)).astype("float32")


def batches():
    for _ in range(STEPS):
        time.sleep(0.2 * (reason == "data"))
        yield rows, rows


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2 * (reason == "callback" or (reason == "rank" and kp.rank() == 1)))


with kp.DataParallel(auto_shard_dataset=False).scope():
    model = keras.Sequential([keras.layers.Input((WIDE,)), keras.layers.Dense(WIDE)])
    model.compile("sgd", "mse")
data = tf.data.Dataset.from_generator(batches, output_signature=(tf.TensorSpec(rows.shape),) * 2)
model.fit(data, callbacks=[Slow()], verbose=0)
