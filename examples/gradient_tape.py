"""Trains one network twice, by a hand-written loop and by fit, and prints how far apart the two end.

keras-par run -np 2 examples/gradient_tape.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import keras_par as kp

ROWS_PER_RANK = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one epoch instead of five")
    epochs = 1 if parser.parse_args().smoke else 5
    kp.init()
    digits = load_digits()
    batch_size = ROWS_PER_RANK * kp.size()
    num_rows = len(digits.target) // batch_size * batch_size
    x, y = (digits.data / 16.0).astype("float32")[:num_rows], digits.target[:num_rows]

    by_hand = network()
    train_by_hand(by_hand, x, y, epochs)

    with kp.DataParallel().scope():
        by_fit = network()
        by_fit.compile(keras.optimizers.Adam(), loss_function)
    by_fit.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0)

    ours, theirs = (np.concatenate([w.ravel() for w in model.get_weights()]) for model in (by_hand, by_fit))
    distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    print(f"rank {kp.rank()} of {kp.size()}: relative distance between loop and fit {distance:.2e}", flush=True)


loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)])


def train_by_hand(model, x, y, epochs):
    data = kp.data.shard(tf.data.Dataset.from_tensor_slices((x, y))).batch(ROWS_PER_RANK)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    kp.broadcast_variables(model.variables + optimizer.variables)
    reducer = kp.GradientReducer(mean=True)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = reducer(tape.gradient(loss, model.trainable_variables))
        optimizer.apply(gradients, model.trainable_variables)

    for _ in range(epochs):
        for batch in data:
            step(*batch)


if __name__ == "__main__":
    main()
