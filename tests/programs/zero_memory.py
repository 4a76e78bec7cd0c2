"""Trains a model for some steps; prints in MB the most memory that a rank had for it, and that of its weights.

To be run with the settings of `tests.memory`.

zero_memory.py STAGE MODEL WIDTH
"""

import sys

import keras
import numpy as np
from keras import layers

import keras_par as kp
from tests import memory

ROWS, LENGTH, WORDS, HEADS = 16, 4, 64, 12


def mlp(width: int, depth: int) -> keras.Model:
    return keras.Sequential([layers.Input((width,)), *(layers.Dense(width, "relu") for _ in range(depth))])


def gpt(width: int, depth: int) -> keras.Model:
    words = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, width)(words)
    for _ in range(depth):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, width // HEADS)(normal, normal, use_causal_mask=True)
        inner = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(width)(inner)
    return keras.Model(words, x)


MODELS = {"mlp": (mlp, 24), "gpt": (gpt, 14)}  # of width 2,048 and 768 they have 100 million weights


def fit(model: str, stage: int, width: int) -> keras.Model:
    make, depth = MODELS[model]
    with kp.DataParallel(zero=stage).scope():
        built = make(width, depth)
        built.compile(keras.optimizers.Adam(), "mse")
    x, y = (np.zeros((2 * ROWS, *part.shape[1:]), part.dtype) for part in (built.inputs[0], built.outputs[0]))
    built.fit(x, y, batch_size=ROWS, verbose=0)
    return built


stage, name, width = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
kp.init(seed="own")
fit(name, stage, 12 * 8)  # loads what is loaded late
before = memory.now()
weights = fit(name, stage, width).count_params() * 4 / 2**20
sys.stdout.write(f"peak {memory.peak() - before} of weights {weights}\n")
