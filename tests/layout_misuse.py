"""Layouts, meshes and strategies that must be refused, and what a rank does with them."""

import keras
import numpy as np
from keras import layers

# What is done: (kind of error, what it says, what it advises).
CASES = {
    "no match": ("AgreedValueError", "pattern 'up/kernal' matches no variable", "nearest are 'up/kernel'"),
    "two matches": ("ValueError", "matches multiple layout specification keys", "at most one"),
    "indivisible": (
        "ValueError",
        "'up/kernel' of shape (8, 15) cannot have the layout (None, 'model')",
        "2 ranks of 'model'",
    ),
    "dims": ("ValueError", "variable 'up/kernel' of shape (8, 16)", "has 1 dim(s) and the shape (8, 16) has 2"),
    "axis twice": ("ValueError", "axis 'model' divides two dims", "change the layout map's pattern"),
    "small mesh": ("ValueError", "the mesh of shape (1, 1) has 1 device(s) but the job has 2 rank(s)", "start 1 ranks"),
    "descending": ("ValueError", "along its axis 'model' the mesh holds ranks [1, 0]", "list the devices in the order"),
    "other mesh": ("AgreedValueError", "'mesh shape' is [1, 2] on rank 0 but [2, 1] on rank 1", "the same arguments"),
    "other layout": (
        "AgreedValueError",
        "'layout map' is {'up/kernel': [None, 'model']} on rank 0 but",
        "the same arguments",
    ),
    "other strategy": (
        "AgreedValueError",
        "'strategy' is model parallel on rank 0 but data parallel",
        "the same arguments",
    ),
    "other reduction": (
        "AgreedValueError",
        "'strategy's reduction' is mean on rank 0 but sum on rank 1",
        "the same arguments",
    ),
    "other values": ("AgreedValueError", "'up/kernel' of model 'functional' other initial values", "set the same seed"),
    "output dims": (
        "ValueError",
        "a tensor of shape (4, 16) cannot have the layout ('model',)",
        "change the layout",
    ),
    "loop": ("ValueError", "a sharded tensor is used within a loop of a graph", "make it whole before the loop"),
}


class Loop(layers.Layer):
    """Reads a sharded tensor of the layer before in a loop."""

    def call(self, x):
        import tensorflow as tf

        total = tf.zeros([tf.shape(x)[0], x.shape[-1]])
        return tf.while_loop(lambda i, total: i < 3, lambda i, total: (i + 1, total + tf.sqrt(x)), [0, total])[1]


def misuse(which: str) -> None:
    """Does something that must be refused with one sentence on every rank."""
    import keras_par as kp

    keras.utils.set_random_seed(3)
    shape, axes, devices, layout = (1, 2), (None, "model"), None, {"up/kernel": (None, "model")}
    reduction = "mean"
    if which == "no match":
        layout = {"up/kernal": axes}
    elif which == "two matches":
        layout = {"up/.*": axes, ".*kernel": axes}
    elif which == "dims":
        layout = {"up/kernel": ("model",)}
    elif which == "axis twice":
        layout = {"up/kernel": ("model", "model")}
    elif which == "small mesh":
        shape, devices = (1, 1), ["cpu:0"]
    elif which == "descending":
        devices = ["cpu:1", "cpu:0"]
    elif which == "output dims":
        layout = {"up/output": ("model",)}
    elif kp.rank() == 1 and which == "other mesh":
        shape = (2, 1)
    elif kp.rank() == 1 and which == "other layout":
        layout = {"up/kernel": ("model", None)}
    elif kp.rank() == 1 and which == "other reduction":
        reduction = "sum"
    mesh = keras.distribution.DeviceMesh(shape, ("batch", "model"), devices)
    layout_map = keras.distribution.LayoutMap(mesh)
    for pattern, divisions in layout.items():
        layout_map[pattern] = divisions
    strategy = kp.ModelParallel(layout_map=layout_map, reduction=reduction)
    if which == "other strategy" and kp.rank() == 1:
        strategy = kp.DataParallel()
    with strategy.scope():
        x = layers.Input((8,))
        initializer = np.random.default_rng(kp.rank()).normal(size=(8, 16)) if which == "other values" else None
        up = layers.Dense(
            15 if which == "indivisible" else 16,
            kernel_initializer="glorot_uniform" if initializer is None else lambda shape, dtype=None: initializer,
            name="up",
        )
        y = up(x)
        model = keras.Model(x, layers.Dense(4)(Loop()(y) if which == "loop" else y))
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 8), "float32"), np.ones((8, 4), "float32"), batch_size=4, verbose=0)
