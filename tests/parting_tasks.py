"""Ranks whose threads or strategies part, and what becomes of it."""

import threading
from concurrent.futures import ThreadPoolExecutor

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


def in_threads() -> tuple[int, str, str]:
    """The number of ranks; what a second thread is told within `fit`; what it predicts afterwards, if that differs."""
    import keras_par as kp

    with kp.DataParallel().scope():
        fitted, model = model_of("a", 1), model_of("b", 2)
    with ThreadPoolExecutor(1, "other") as pool:

        def predict() -> np.ndarray:
            return pool.submit(model.predict, rows(2), verbose=0).result()

        class Predicts(keras.callbacks.Callback):
            said = ""

            def on_epoch_end(self, epoch, logs=None):
                model.predict(rows(2), verbose=0)  # of this thread
                try:
                    predict()
                except RuntimeError as error:
                    self.said = str(error)

        callback = Predicts()
        fitted.fit(rows(1), np.zeros((ROWS, 2)), batch_size=4, verbose=0, callbacks=[callback])
        return kp.size(), callback.said, "" if np.array_equal(predict(), model.predict(rows(2), verbose=0)) else "other"


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
