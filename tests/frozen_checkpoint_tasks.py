"""Trainings of adapters on a base that is frozen, with checkpoints after each epoch."""

import keras
import numpy as np

import keras_par as kp

STRATEGIES = {"data": {}, "zero 3": {"zero": 3, "zero_min_kb": 0}}


def adapted_model() -> keras.Model:
    """A base of 4 MB under adapters, and moving statistics, which are not trained but change."""
    layers = [keras.layers.Dense(512, "relu"), keras.layers.BatchNormalization(), keras.layers.Dense(2048)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
    for dense in (layers[0], layers[2]):
        dense.enable_lora(1)
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def rows() -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(3)
    return draws.normal(size=(32, 16)).astype("float32"), draws.normal(size=(32, 1)).astype("float32")


def fit(folder: str, strategy: str, epochs: int, keep: int | None) -> dict:
    keras.utils.set_random_seed(7)
    with kp.DataParallel(**STRATEGIES[strategy]).scope():
        model = adapted_model()
    checkpoint = kp.callbacks.RankCheckpoint(folder, keep=keep)
    found = model.fit(
        *rows(), batch_size=8, epochs=epochs, verbose=0, callbacks=[kp.callbacks.Resume(folder), checkpoint]
    )
    return {"size": kp.size(), "loss": found.history["loss"], "weights": model.get_weights()}
