"""Trains a wide model for some steps; prints in MB the most memory that a rank had for it, and that of its weights.

To be run without oneDNN and with MALLOC_MMAP_THRESHOLD_: else TensorFlow and the C library keep memory for later.

zero_memory.py STAGE
"""

import sys

import keras
import numpy as np

import keras_par as kp

WIDTH, DEPTH, ROWS = 2048, 24, 16


def megabytes(kind: str) -> float:
    """Of this process."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(kind))


def fit(width: int, depth: int) -> keras.Model:
    with kp.DataParallel(zero=int(sys.argv[1])).scope():
        model = keras.Sequential([keras.Input((width,)), *(keras.layers.Dense(width, "relu") for _ in range(depth))])
        model.compile(keras.optimizers.Adam(), "mse")
    x = np.zeros((2 * ROWS, width), "float32")
    model.fit(x, x, batch_size=ROWS, verbose=0)
    return model


kp.init(seed="own")
fit(64, 2)  # loads what is loaded late
before = megabytes("VmRSS")
weights = fit(WIDTH, DEPTH).count_params() * 4 / 2**20
print(f"peak {megabytes('VmHWM') - before} of weights {weights}", flush=True)
