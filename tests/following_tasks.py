"""Models of which the layout map divides one operation, and what follows from that."""

import keras
import numpy as np
from keras import layers

# The pattern that is said, and the variables that follow from it.
CASES = {
    "columns": (
        {".*first/kernel": (None, "model")},
        {"first/bias": ("model",), "second/kernel": ("model", None), "second/bias": ("model",)},
    ),
    "rows": (
        {".*first/kernel": ("model", None)},
        {"first/bias": ("model",), "second/kernel": ("model", None), "second/bias": ("model",)},
    ),
    "said": (
        {".*first/kernel": (None, "model"), ".*second/kernel": (None, None)},
        {"first/bias": ("model",), "second/bias": ("model",)},
    ),
    "convolutions": ({".*first/kernel": (None, None, None, "model")}, {"second/kernel": (None, None, "model", None)}),
    "attention": ({".*embedding/embeddings": (None, "model")}, {"second/kernel": ("model", None)}),
}


def model_of(case: str) -> keras.Model:
    keras.utils.set_random_seed(3)
    if case == "convolutions":
        x = inputs = layers.Input((8, 8, 3))
        x = layers.BatchNormalization()(layers.Conv2D(4, 3, name="first")(x))
        x = layers.GlobalAveragePooling2D()(layers.Conv2D(6, 3, activation="relu", name="second")(x))
        outputs = layers.Dense(3, name="third")(x)
    elif case == "attention":
        x = inputs = layers.Input((6,), dtype="int32")
        x = layers.Embedding(12, 8, name="embedding")(x)
        x = x + layers.MultiHeadAttention(2, 4, name="attention")(layers.LayerNormalization()(x), x)
        outputs = layers.Dense(3, name="third")(layers.Dense(16, "gelu", name="second")(x))
    else:
        inputs = layers.Input((6,))
        x = layers.ReLU(name="relu")(layers.Dense(8, name="first")(inputs))
        outputs = layers.Dense(4, name="second")(x)
    model = keras.Model(inputs, outputs)
    # Adam would make much of the rounding of gradients that are zero, as those of a bias before a normalization.
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


def data(case: str) -> dict:
    random = np.random.default_rng(1)
    if case == "attention":
        return {"x": random.integers(0, 12, (12, 6)), "y": random.normal(size=(12, 6, 3))}
    shape = (12, 8, 8, 3) if case == "convolutions" else (12, 6)
    return {"x": random.normal(size=shape), "y": random.normal(size=(12, 3 if case == "convolutions" else 4))}


def trained(model: keras.Model, case: str) -> dict:
    given = data(case)
    history = model.fit(**given, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    return {
        "weights": model.get_weights(),
        "history": history,
        "evaluated": model.evaluate(**given, batch_size=4, verbose=0),
        "predicted": model.predict(given["x"], batch_size=4, verbose=0),
    }


def alone(case: str) -> dict:
    """What one process makes of it."""
    return trained(model_of(case), case)


def follow(case: str, mesh: tuple[int, int]) -> dict:
    """What ranks make of it, how the variables are divided, and what is shown of them."""
    import keras_par as kp

    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    for pattern, axes in CASES[case][0].items():
        layout_map[pattern] = axes
    with kp.ModelParallel(layout_map=layout_map, propagate=True).scope():
        model = model_of(case)
    result = trained(model, case)
    described = kp.describe(model)
    return {
        **result,
        "size": kp.size(),
        "axes": {row.path: row.axes for row in described.variables if any(row.axes)},
        "outputs": [[row.layer, row.shape, row.axes, row.local_shape] for row in described.outputs["train_step"]],
        "sources": {call.layer: call.source for call in described.collectives["train_step"]},
        "text": str(described),
    }


class Plain(layers.Layer):
    """Has no `__init__`, whose parameters Keras would look at."""


class Made(layers.Layer):
    """Has one with a parameter of its own."""

    def __init__(self, number: int, **options):
        super().__init__(**options)
        self.number = number


def layers_without_init() -> list:
    """Names and configurations of layers that are made once keras_par has started."""
    return [["Plain", Plain(name="given").name], ["Made", Made(3).number]]
