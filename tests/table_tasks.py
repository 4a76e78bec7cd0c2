"""Elements of which a part is no rows, fed in each way that a user has: a constant table, a scalar, a list of edges."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cases import in_dtype
from tests.tasks import seed, strategy_scope

NUM_ROWS, BATCH = 42, 16  # the last batch has 10 rows, which is no size of a table
RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(NUM_ROWS, 4)), RANDOM.normal(size=(NUM_ROWS, 1))
TABLES = {"table": RANDOM.normal(size=(7, 4)), "large": RANDOM.normal(size=(40, 4)), "scalar": np.array(2.0)}


class WithTable(keras.Model):
    """Compares rows with all entries of a table, or multiplies them by a scalar."""

    def __init__(self, rate: float = 0.0):
        super().__init__()
        self.hidden, self.out = layers.Dense(3, "tanh"), layers.Dense(1)
        self.noise = layers.Dropout(rate)

    def call(self, inputs, training=None):
        table, x = inputs["table"], inputs["rows"]
        if len(table.shape):
            scores = ops.softmax(
                ops.matmul(self.hidden(x), ops.transpose(self.hidden(self.noise(table, training=training))))
            )
            x = ops.matmul(scores, table)
        else:
            x = self.hidden(x) * table
        return self.out(x)


def batches(table, targets: bool = True):
    for start in range(0, NUM_ROWS, BATCH):
        rows = slice(start, start + BATCH)
        inputs = {"table": table, "rows": X[rows]}
        yield (inputs, Y[rows]) if targets else (inputs,)


class Batches(keras.utils.PyDataset):
    def __init__(self, table):
        super().__init__()
        self._batches = list(batches(table))

    def __len__(self):
        return len(self._batches)

    def __getitem__(self, index):
        return self._batches[index]


def known(table):
    """The table's size is known while tracing, that of the rows is not."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    return rows.map(lambda x, y: ({"table": tf.constant(table), "rows": x}, y))


def even(table):
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH, drop_remainder=True)
    return rows.map(lambda x, y: ({"table": tf.constant(table), "rows": x}, y))


def unknown(table):
    """No size is known while tracing."""
    spec = {"table": tf.TensorSpec([None, 4][: table.ndim], X.dtype), "rows": tf.TensorSpec([None, 4], X.dtype)}
    return tf.data.Dataset.from_generator(
        lambda: batches(table), output_signature=(spec, tf.TensorSpec([None, 1], Y.dtype))
    )


def loader(table):
    import torch

    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))

    def joined(chosen):
        x, y = torch.utils.data.default_collate(chosen)
        return {"table": torch.from_numpy(table), "rows": x}, y

    return torch.utils.data.DataLoader(rows, batch_size=BATCH, collate_fn=joined)


FEEDS = {
    "known": known,
    "even": even,
    "unknown": unknown,
    "generator": lambda table: (each for _ in range(2) for each in batches(table)),
    "PyDataset": Batches,
    "loader": loader,
}


def train(feed: str, table: str, distributed: bool, eagerly: bool = False, **options) -> dict:
    """The weights, losses and predictions after two epochs of rows beside a table."""
    seed(distributed)
    with in_dtype("float64"), strategy_scope(distributed, **options):
        model = WithTable(0.4 if feed in ("known", "even") else 0.0)  # else a table is not told from rows while tracing
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eagerly)
        steps = {"steps_per_epoch": 3} if feed == "generator" else {}
        data = FEEDS[feed](TABLES[table])
        history = model.fit(data, epochs=2, shuffle=False, verbose=0, **steps).history
        again = FEEDS["unknown" if feed == "generator" else feed](TABLES[table])
        first = next(batches(TABLES[table]))
        return {
            "size": size_of(distributed),
            "weights": model.get_weights(),
            "logs": history,
            "evaluate": model.evaluate(again, verbose=0),
            "predict": model.predict(again, verbose=0),
            "on a batch": [model.train_on_batch(*first)],
        }


def size_of(distributed: bool) -> int:
    if not distributed:
        return 1
    import keras_par as kp

    return kp.size()


def refused(which: str) -> str:
    """What is said of elements whose rows are not clear."""
    table = TABLES["table"]
    data = {
        "no targets": lambda: (each for each in batches(table, targets=False)),
        "no targets, known": lambda: known(table).map(lambda inputs, y: inputs),
        "targets": lambda: (({"table": X[:16], "rows": X[:16]}, table) for _ in range(2)),
        "at first as many": lambda: batches(TABLES["large"][:BATCH]),
        "scalars": lambda: tf.data.Dataset.from_tensor_slices((X, Y[:, 0])),
    }[which]()
    seed(True)
    with in_dtype("float64"), strategy_scope(True):
        model = WithTable()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        try:
            if which.startswith("no targets"):
                model.predict(data, verbose=0)
            else:
                model.fit(data, verbose=0)
        except ValueError as error:
            return str(error)
    return ""
