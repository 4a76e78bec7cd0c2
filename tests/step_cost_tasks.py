"""What the ranks of a pool do for the tests of what a step costs."""

import contextlib
import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NUM_STEPS = 6
BATCH_SIZE = 12  # which 2 and 3 ranks divide evenly


class Noting(layers.Layer):
    """Notes each graph that it is called in."""

    def __init__(self):
        super().__init__()
        self.graphs = []

    def call(self, x):
        graph = tf.compat.v1.get_default_graph()
        if isinstance(graph, tf.__internal__.FuncGraph) and not isinstance(x, keras.KerasTensor):
            self.graphs.append(graph)
        return x


def train() -> dict:
    """Calls fit three times; how often its step was traced, and the types of the operations in its graph."""
    keras.utils.set_random_seed(1)
    noting = Noting()
    hidden = [layers.Dense(8, "relu"), noting, layers.Dense(8, "relu")]
    model = keras.Sequential([layers.Input((4,)), *hidden, layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    x, y = np.ones((BATCH_SIZE * NUM_STEPS, 4), "float32"), np.zeros(BATCH_SIZE * NUM_STEPS, "int32")
    fit = functools.partial(model.fit, batch_size=BATCH_SIZE, verbose=0)
    num_reads = []
    for num_rows in (len(x), len(x), len(x) // 2):
        with host_reads_counted() as reads:
            fit(x[:num_rows], y[:num_rows], epochs=2)
        num_reads.append(len(reads))
    traced = [graph for graph in noting.graphs if "scratch" not in graph.name]  # where shapes are inferred
    operations = traced[-1].get_operations()
    return {
        "model": model,
        "num_traces": len(traced),
        "operations": [operation.type for operation in operations],
        "on_host": [operation.type for operation in operations if "CPU" in operation.device.upper()],
        "reads_of_steps": num_reads[1] - num_reads[2],
        "iterations": int(model.optimizer.iterations.value),
    }


@contextlib.contextmanager
def host_reads_counted():
    """Notes each tensor that Python reads, which on a GPU would be a copy to the host that waits for all before it."""
    reads = []
    kind = next(each for each in type(tf.constant(0)).__mro__ if "_numpy" in vars(each))
    original = kind._numpy

    def noting(self):
        reads.append(self.shape)
        return original(self)

    kind._numpy = noting
    try:
        assert int(tf.constant(3)) == 3 and tf.constant(4).numpy() == 4 and len(reads) == 2
        reads.clear()
        yield reads
    finally:
        kind._numpy = original


def look_up() -> dict:
    """Trains two embeddings, of which one is also read whole; the operations that read variables."""
    import keras_par as kp

    keras.utils.set_random_seed(1)
    noting = Noting()
    with kp.DataParallel().scope():
        words = layers.Input((3,), dtype="int32")
        alone, tied = layers.Embedding(50, 4), layers.ReversibleEmbedding(60, 4)
        model = keras.Model(words, tied(noting(alone(words) + tied(words)), reverse=True))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rows = np.arange(48).reshape(16, 3).astype("int32")
    model.fit(rows, rows, batch_size=8, verbose=0)
    operations = [graph for graph in noting.graphs if "scratch" not in graph.name][-1].get_operations()
    reading = [each for each in operations if each.type in ("ResourceGather", "ReadVariableOp")]
    return {
        "size": kp.size(),
        "gathers": sum(each.type == "ResourceGather" for each in reading),
        "collectives": sorted(each.type for each in operations if each.type.startswith(("Horovod", "KerasPar"))),
        "counted": [call.kind for call in kp.describe(model).collectives["train_step"]],
        "whole": [each.outputs[0].shape.as_list() for each in reading if each.type == "ReadVariableOp"],
    }


def take_odd_indices() -> dict:
    """Losses and the trained table where a layer looks rows up by all kinds of indices; plain Keras's are the same."""

    class Rows(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=(20, 4), name="table")

        def call(self, x):
            kinds = [keras.ops.cast(x, dtype) for dtype in ("int16", "int32", "int64")]
            rows = sum(keras.ops.take(self.table, kind, axis=0) for kind in kinds)
            rows = rows + keras.ops.take(self.table, -1 - x, axis=0) + keras.ops.take(self.table, [3, -2, 3], axis=0)
            return rows + keras.ops.take(self.table, [1, 2, 0, 3], axis=-1)[0]

    keras.utils.set_random_seed(1)
    model = keras.Sequential([layers.Input((3,), dtype="int32"), Rows(), layers.Flatten(), layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.arange(48).reshape(16, 3) % 4
    losses = model.fit(x.astype("int32"), np.ones((16, 2)), batch_size=8, epochs=2, verbose=0).history["loss"]
    return {"losses": losses, "table": model.layers[0].table.numpy().tolist()}


def take_odd_indices_distributed() -> dict:
    """The same under a strategy."""
    import keras_par as kp

    with kp.DataParallel().scope():
        return {**take_odd_indices(), "size": kp.size()}


def train_plain() -> dict:
    """The same without what a process cannot send."""
    return {name: value for name, value in train().items() if name != "model"}


def train_distributed() -> dict:
    """The same under a strategy."""
    import keras_par as kp
    from keras_par.keras_patches.inputs.shards import EvenShard

    cut = []
    original = tf.data.Dataset.__iter__

    def noting(self):
        cut.extend([self] if isinstance(self.element_spec, EvenShard) else [])
        return original(self)

    tf.data.Dataset.__iter__ = noting
    try:
        with kp.DataParallel().scope():
            result = train()
    finally:
        tf.data.Dataset.__iter__ = original
    model = result.pop("model")
    [reduction] = kp.describe(model).collectives["train_step"]
    num_bytes = sum(4 * int(np.prod(variable.shape)) for variable in model.trainable_variables)
    return {
        **result,
        "size": kp.size(),
        "num_cut": len(cut),
        "bytes": reduction.num_bytes,
        "bytes_of_gradients": num_bytes,
    }
