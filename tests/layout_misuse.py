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


# What is other than it should be.
WRONG: dict[str, dict] = {
    "no match": {"layout": {"up/kernal": (None, "model")}},
    "two matches": {"layout": {"up/.*": (None, "model"), ".*kernel": (None, "model")}},
    "dims": {"layout": {"up/kernel": ("model",)}},
    "axis twice": {"layout": {"up/kernel": ("model", "model")}},
    "small mesh": {"shape": (1, 1), "devices": ["cpu:0"]},
    "descending": {"devices": ["cpu:1", "cpu:0"]},
    "output dims": {"layout": {"up/output": ("model",)}},
}
WRONG_ON_RANK_1: dict[str, dict] = {
    "other mesh": {"shape": (2, 1)},
    "other layout": {"layout": {"up/kernel": ("model", None)}},
    "other reduction": {"reduction": "sum"},
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
    about = {"shape": (1, 2), "devices": None, "layout": {"up/kernel": (None, "model")}, "reduction": "mean"}
    about |= WRONG.get(which, {}) | (WRONG_ON_RANK_1.get(which, {}) if kp.rank() == 1 else {})
    mesh = keras.distribution.DeviceMesh(about["shape"], ("batch", "model"), about["devices"])
    layout_map = keras.distribution.LayoutMap(mesh)
    for pattern, axes in about["layout"].items():
        layout_map[pattern] = axes
    strategy = kp.ModelParallel(layout_map=layout_map, reduction=about["reduction"])
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
