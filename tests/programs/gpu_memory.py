"""A training on a GPU whose last rank wants more of its memory than there is."""

import keras
import numpy as np
import tensorflow as tf

import keras_par as kp

kp.init()
keras.distribution.set_distribution(kp.DataParallel())


class Greedy(keras.callbacks.Callback):
    """Keeps 16 GB more on the GPU with each batch."""

    def on_train_batch_end(self, batch, logs=None):
        if kp.rank() == kp.size() - 1:
            self.kept = [*getattr(self, "kept", ()), tf.zeros([4 << 30])]


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((640, 8)), np.ones((640, 1)), batch_size=8, verbose=0, callbacks=[Greedy()])
