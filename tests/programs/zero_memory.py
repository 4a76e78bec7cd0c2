"""Trains a wide model for some steps; prints in MB the most memory that a rank had for it, and that of its weights.

To be run with the settings of `tests.memory`.

zero_memory.py STAGE
"""

import sys

import keras
import numpy as np

import keras_par as kp
from tests import memory

WIDTH, DEPTH, ROWS = 2048, 24, 16


def fit(width: int, depth: int) -> keras.Model:
    with kp.DataParallel(zero=int(sys.argv[1])).scope():
        model = keras.Sequential([keras.Input((width,)), *(keras.layers.Dense(width, "relu") for _ in range(depth))])
        model.compile(keras.optimizers.Adam(), "mse")
    x = np.zeros((2 * ROWS, width), "float32")
    model.fit(x, x, batch_size=ROWS, verbose=0)
    return model


kp.init(seed="own")
fit(64, 2)  # loads what is loaded late
before = memory.now()
weights = fit(WIDTH, DEPTH).count_params() * 4 / 2**20
sys.stdout.write(f"peak {memory.peak() - before} of weights {weights}\n")
