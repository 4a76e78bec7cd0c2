"""What the ranks of a pool do for the tests of what a step costs."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

NUM_STEPS = 6


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
    """Calls fit twice; how often its step was traced, and the types of the operations in its graph."""
    keras.utils.set_random_seed(1)
    noting = Noting()
    hidden = [layers.Dense(8, "relu"), noting, layers.Dense(8, "relu")]
    model = keras.Sequential([layers.Input((4,)), *hidden, layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    x, y = np.ones((8 * NUM_STEPS, 4), "float32"), np.zeros(8 * NUM_STEPS, "int32")
    for _ in range(2):
        model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    traced = [graph for graph in noting.graphs if "scratch" not in graph.name]  # where shapes are inferred
    return {
        "num_traces": len(traced),
        "operations": [operation.type for operation in traced[-1].get_operations()],
        "iterations": int(model.optimizer.iterations.value),
    }


def train_distributed() -> dict:
    """The same under a strategy."""
    import keras_par as kp

    with kp.DataParallel().scope():
        return {**train(), "size": kp.size()}
