"""Ranks whose threads or strategies part, and what becomes of it."""

import threading
import time

import keras
import numpy as np
from keras import layers

ROWS = 12


def model_of(name: str, seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([layers.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(2)], name=name)
    model.compile("sgd", "mse")
    return model


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 5))


def alone() -> dict:
    """What one process predicts and learns, one after another."""
    found = {name: model_of(name, seed).predict(rows(seed), verbose=0) for name, seed in (("a", 1), ("b", 2))}
    model = model_of("c", 3)
    model.fit(rows(3), np.zeros((ROWS, 2)), batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {**found, "c": model.get_weights()[0], "d": model_of("a", 1).predict(rows(4), verbose=0)}


def in_threads() -> dict:
    """The same in four threads, begun in another order on each rank."""
    import keras_par as kp

    with kp.DataParallel().scope():
        models = {name: model_of(name, seed) for name, seed in (("a", 1), ("b", 2), ("c", 3))}
    found = {}

    def predict(name: str, of: str, seed: int) -> None:
        for _ in range(3):
            found[name] = models[of].predict(rows(seed), batch_size=4, verbose=0)

    def fit() -> None:
        models["c"].fit(rows(3), np.zeros((ROWS, 2)), batch_size=4, epochs=2, shuffle=False, verbose=0)
        found["c"] = models["c"].get_weights()[0]

    threads = [threading.Thread(target=predict, args=given) for given in (("a", "a", 1), ("b", "b", 2), ("d", "a", 4))]
    threads.append(threading.Thread(target=fit))
    for thread in threads if kp.rank() == 0 else reversed(threads):
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return {**found, "size": kp.size()}


def misuse(which: str) -> None:
    """Raises."""
    import keras_par as kp

    is_first = kp.rank() == 0
    if which == "strategies":
        layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ("batch", "model")))
        layout_map[".*dense.*kernel"] = (None, "model")
        with (kp.DataParallel() if is_first else kp.ModelParallel(layout_map=layout_map)).scope():
            model = model_of("a", 1)
        model.fit(rows(1), np.zeros((ROWS, 2)), batch_size=4, verbose=0)
    elif which == "threads":
        with kp.DataParallel().scope():
            models = [model_of("a", 1), model_of("b", 2)]
        raised: list[Exception] = []

        def predict() -> None:
            try:
                models[0 if is_first else 1].predict(rows(1), verbose=0)
            except Exception as error:
                raised.append(error)

        thread = threading.Thread(target=predict)
        thread.start()
        thread.join()
        raise raised[0]
