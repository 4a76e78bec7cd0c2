"""A training with a constant global batch, whose weights are those of one process whatever becomes of its ranks.

worlds.py CHECKPOINTS NUM_EPOCHS WEIGHTS [EVERY [MEMORY_EVERY]]
"""

import os
import sys
import time

import keras
import numpy as np

import keras_par as kp

PAUSE = float(os.environ.get("PAUSE", "0.04"))  # seconds, of each step that something may happen to: time to look
STEPS = 40  # of an epoch

directory, num_epochs, path, *rest = sys.argv[1:]
keras.config.set_floatx("float64")
kp.init()
keras.utils.set_random_seed(1)
print(f"world of {kp.size()}, attempt {os.environ.get('KERAS_PAR_RESTART_COUNT')}", flush=True)
x = np.random.default_rng(0).normal(size=(STEPS * 12, 8))
y = x.sum(axis=1, keepdims=True)
with kp.DataParallel().scope():
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("adam", "mse")
callbacks = []
if directory != "none":
    every, memory_every = [*map(int, rest), *(7, None)[len(rest) :]]
    checkpoint = kp.callbacks.RankCheckpoint(directory, every=every, memory_every=memory_every)
    pause = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: time.sleep(PAUSE))
    callbacks = [pause, kp.callbacks.Resume(directory), checkpoint]
model.fit(x, y, batch_size=12, epochs=int(num_epochs), callbacks=callbacks, verbose=0)
if kp.rank() == 0:
    np.savez(path, *model.get_weights())
