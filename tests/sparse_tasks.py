"""Trainings on sparse and ragged rows by models that the first batch builds; the same lines run in one process."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cases import crossentropy, rows
from tests.tasks import seed, strategy_scope

NUM_ROWS, BATCH_SIZE = 27, 6


def columns() -> tuple[np.ndarray, np.ndarray]:
    """Rows of which a half is zero, and classes."""
    x, y = rows(NUM_ROWS)
    return np.where(x > 0, x, 0), y


def sparse_tensor() -> dict:
    x, y = columns()
    return {"x": tf.sparse.from_dense(x), "y": y, "batch_size": BATCH_SIZE}


def scipy_matrix() -> dict:
    import scipy.sparse

    x, y = columns()
    return {"x": scipy.sparse.csr_matrix(x), "y": y, "batch_size": BATCH_SIZE}


def dataset_of_sparse_rows() -> dict:
    x, y = columns()
    return {"x": tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(BATCH_SIZE)}


def dataset_of_sparse_batches() -> dict:
    batches = tf.data.Dataset.from_tensor_slices(columns()).batch(BATCH_SIZE)
    return {"x": batches.map(lambda x, y: (tf.sparse.from_dense(x), y))}


def even_dataset() -> dict:
    x, y = columns()
    rows = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y))
    return {"x": rows.batch(BATCH_SIZE, drop_remainder=True)}


KINDS = {
    kind.__name__: kind
    for kind in (sparse_tensor, scipy_matrix, dataset_of_sparse_rows, dataset_of_sparse_batches, even_dataset)
}


class OfSparseRows(keras.Model):
    """A model that takes sparse tensors only."""

    def __init__(self):
        super().__init__()
        self.out = layers.Dense(3)

    def build(self, shape):
        self.table = self.add_weight(shape=(shape[-1], 16), name="table")

    def call(self, x):
        return self.out(tf.sparse.sparse_dense_matmul(x, tf.convert_to_tensor(self.table)))


MODELS = {"sequential": lambda: keras.Sequential([layers.Dense(16, "tanh"), layers.Dense(3)]), "own": OfSparseRows}


def train(kind: str, model: str, distributed: bool) -> dict:
    """Weights and what the calls return, of a model that is not built before `fit`."""
    seed(distributed)
    data = KINDS[kind]()
    x, y = columns()
    with strategy_scope(distributed):
        # SGD, because plain Keras's Adam squares the rows of a sparse input's gradient one by one.
        network = MODELS[model]()
        network.compile(keras.optimizers.SGD(0.1), crossentropy(), metrics=["accuracy"])
    history = network.fit(**data, epochs=2, validation_data=(tf.sparse.from_dense(x[:7]), y[:7]), verbose=0)
    without_targets = data["x"].map(lambda x, y: x) if "dataset" in kind else data["x"]
    sparse = tf.sparse.from_dense(x[:7])
    return {
        "logs": history.history,
        "predict": network.predict(without_targets, verbose=0),
        "evaluate": network.evaluate(**data, verbose=0),
        "train_on_batch": network.train_on_batch(sparse, y[:7]),
        "predict_on_batch": network.predict_on_batch(sparse),
        "weights": network.get_weights(),
    }


def first_call(call: str, distributed: bool):
    """What the first use of an unbuilt model returns of seven sparse rows."""
    x, y = columns()
    sparse = tf.sparse.from_dense(x[:7])
    seed(distributed)
    with strategy_scope(distributed):
        network = OfSparseRows()
        network.compile("sgd", crossentropy())
    return getattr(network, call)(*((sparse,) if "predict" in call else (sparse, y[:7])))


def train_on_the_only_batch(kind: str, distributed: bool) -> list:
    """The weights after training on one batch that rank 0 has for itself, while rank 1 has no row of that kind."""
    x, y = columns()
    seed(distributed)
    ragged = tf.RaggedTensor.from_tensor(x[:7], padding=0.0)
    data = tf.data.Dataset.from_tensors((tf.sparse.from_dense(x[:7]) if kind == "sparse" else ragged, y[:7]))
    if distributed:
        import keras_par as kp

        data = kp.data.shard(data)
    with strategy_scope(distributed):
        if kind == "sparse":
            model = OfSparseRows()
        else:
            inputs = layers.Input((None,), ragged=True)
            model = keras.Model(inputs, layers.Dense(3)(layers.Lambda(sums, (1,))(inputs)))
        model.compile("sgd", crossentropy())
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights()


def predict_ragged(call: str, distributed: bool) -> list:
    """Predictions with rows of unequal lengths, of 7 rows in batches of 3, as lists; the last batch has 1."""
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(21.0, dtype="float32"), [3, 0, 4, 1, 6, 2, 5])
    with strategy_scope(distributed):
        inputs = layers.Input((None,), ragged=True)
        doubled = layers.Lambda(lambda x: x * 2.0, output_shape=lambda shape: shape)(inputs)
        model = keras.Model(inputs, {"ragged": doubled, "dense": layers.Lambda(sums, (1,))(inputs)})
        model.compile()
    data = tf.data.Dataset.from_tensor_slices(ragged).ragged_batch(3)
    result = model.predict_on_batch(ragged) if call == "predict_on_batch" else model.predict(data, verbose=0)
    return [type(result["ragged"]).__name__, result["ragged"].to_list(), result["dense"].tolist()]


def sums(x):
    return tf.reduce_sum(x, 1, keepdims=True)
