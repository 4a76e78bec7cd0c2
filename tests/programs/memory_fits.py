"""Trains in two calls of `fit` with the same callbacks; the first time a rank dies in the second call.

memory_fits.py CHECKPOINTS WEIGHTS
"""

import os
import signal
import sys
import time

import keras
import numpy as np

import keras_par as kp

directory, path = sys.argv[1:]
keras.config.set_floatx("float64")
kp.init()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(240, 8))
y = x.sum(axis=1, keepdims=True)
with kp.DataParallel().scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse")


class Die(keras.callbacks.Callback):
    """In the second epoch of the second call."""

    epoch = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        is_first = os.environ.get("KERAS_PAR_RESTART_COUNT") == "0"
        if is_first and directory != "none" and kp.rank() == 1 and (self.epoch, batch) == (3, 15):
            os.kill(os.getpid(), signal.SIGKILL)


callbacks = [Die()]
if directory != "none":
    checkpoint = kp.callbacks.RankCheckpoint(directory, keep=1, memory_every=4)
    callbacks += [checkpoint, kp.callbacks.Resume(directory)]  # in the order that is not the usual one
for epochs in (2, 5):
    model.fit(x, y, batch_size=12, epochs=epochs, callbacks=callbacks, verbose=0, shuffle=False)
    if directory == "none":
        break
if directory == "none":
    model.fit(x, y, batch_size=12, epochs=5, initial_epoch=2, callbacks=callbacks, verbose=0, shuffle=False)
if kp.rank() == 0:
    np.savez(path, *model.get_weights())
