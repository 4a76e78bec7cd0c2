"""Trainings whose every batch has fewer rows than there are ranks; the same lines run in one process.

Nothing here imports keras_par but `strategy_scope`, on ranks.
"""

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cases import crossentropy, network, rows
from tests.tasks import seed, strategy_scope

NUM_ROWS = 11


class Batches(keras.utils.PyDataset):
    """Rows in batches of `size`."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def __len__(self):
        return -(-NUM_ROWS // self.size)

    def __getitem__(self, index):
        return tuple(array[index * self.size : (index + 1) * self.size] for array in rows(NUM_ROWS))


def pairs(size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(rows(NUM_ROWS)).batch(size)


def endless(size: int):
    batches = Batches(size)
    return (batches[i % len(batches)] for i in range(10**9))


def loader(size: int):
    import torch

    x, y = rows(NUM_ROWS)
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(data, batch_size=size)


def sparse(x, y):
    return tf.sparse.from_dense(x), y


def scipy_rows(size: int) -> dict:
    import scipy.sparse

    x, y = rows(NUM_ROWS)
    return {"x": scipy.sparse.csr_matrix(x), "y": y, "batch_size": size}


KINDS = {
    "arrays": lambda size: dict(zip("xy", rows(NUM_ROWS), strict=True)) | {"batch_size": size},
    "dataset": lambda size: {"x": pairs(size)},
    "static_dataset": lambda size: {
        "x": tf.data.Dataset.from_tensor_slices(rows(NUM_ROWS)).batch(size, drop_remainder=True)
    },
    "unknown_dataset": lambda size: {"x": pairs(size).unbatch().filter(lambda x, y: True).batch(size)},
    "sparse_dataset": lambda size: {"x": pairs(size).map(sparse)},
    "scipy": scipy_rows,
    "py_dataset": lambda size: {"x": Batches(size)},
    "generator": lambda size: {"x": endless(size), "steps_per_epoch": 5},
    "data_loader": lambda size: {"x": loader(size)},
}


def train(kind: str, size: int, distributed: bool) -> dict:
    """Trains in batches of `size` rows and validates in batches of one; weights, optimizer state and logs."""
    seed(distributed)
    data = KINDS[kind](size)
    with strategy_scope(distributed):
        model = network()
        # Not Adam, which would notice that plain Keras counts an iteration too many where data ends unannounced.
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.3), crossentropy(), metrics=["accuracy"]
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data", UserWarning)
        history = model.fit(
            **data, epochs=2, validation_data=rows(3, 9), validation_batch_size=1, shuffle=kind == "arrays", verbose=0
        )
    return {
        "weights": model.get_weights(),
        "slots": [np.asarray(v.value) for v in model.optimizer.variables if v.name != "iteration"],
        "logs": history.history,
    }


def everything_else(size: int, distributed: bool, **compile_options) -> dict:
    """What a model of batch normalization, masks and weights returns of batches of `size` rows."""
    seed(distributed)
    x = np.random.default_rng(3).integers(0, 5, (NUM_ROWS, 24))
    y = np.random.default_rng(4).normal(size=(NUM_ROWS, 24, 2)).astype("float32")
    weight = np.random.default_rng(5).uniform(0.5, 2, (NUM_ROWS, 24))
    with strategy_scope(distributed):
        model = keras.Sequential(
            [
                layers.Input((24,), dtype="int32"),
                layers.Embedding(5, 3, mask_zero=True),
                layers.BatchNormalization(),
                layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"], **compile_options)
    model.fit(x, y, sample_weight=weight, batch_size=size, epochs=2, verbose=0)
    return {
        "fit": model.get_weights(),
        "evaluate": model.evaluate(x, y, batch_size=size, verbose=0),
        "evaluate_dataset": model.evaluate(tf.data.Dataset.from_tensor_slices((x, y)).batch(size), verbose=0),
        "predict": model.predict(x, batch_size=size, verbose=0),
        "predict_dataset": model.predict(tf.data.Dataset.from_tensor_slices(x).batch(size), verbose=0),
        "predict_one": model.predict(x[:1], verbose=0),
        "train_on_batch": model.train_on_batch(x[:size], y[:size], weight[:size]),
        "train_on_one": model.train_on_batch(x[:1], y[:1]),
        "test_on_batch": model.test_on_batch(x[:size], y[:size]),
        "predict_on_batch": model.predict_on_batch(x[:1]),
        "weights": model.get_weights(),
    }


def first_call(call: str, distributed: bool):
    """What the first use of a model that is not built returns of one row."""
    x, y = rows(1)
    seed(distributed)
    with strategy_scope(distributed):
        model = keras.Sequential([layers.Dense(4, "tanh", kernel_initializer=keras.initializers.Constant(0.2))])
        model.compile("sgd", "mse")
    y = y.astype("float32")[:, np.newaxis]
    data = (x,) if "predict" in call else (x, y)
    quiet = {} if call.endswith("batch") else {"verbose": 0}
    result = getattr(model, call)(*data, **quiet)
    return result.history["loss"] if call == "fit" else result
