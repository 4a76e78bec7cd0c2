"""Builds models and layouts from short descriptions, such as a property-based test draws.

Nothing here imports keras_par: the same lines run in one process and on every rank.
"""

from collections.abc import Callable, Sequence
from itertools import product
from random import Random

import keras
import numpy as np
from keras import layers

VOCABULARY, LENGTH = 24, 6
SHAPES = {"vectors": (8,), "tokens": (LENGTH,), "images": (6, 6, 4)}


class Scale(layers.Layer):
    """A layer of a user's own: every variable is used twice, one by an operation on its gathered value."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="random_normal", name="scale")
        self.mix = self.add_weight(shape=(shape[-1], shape[-1]), initializer="random_normal", name="mix")

    def call(self, x):
        x = keras.ops.matmul(x, self.mix) * (1.0 + self.scale)
        return x + keras.ops.sort(self.scale) + keras.ops.sum(keras.ops.diagonal(self.mix))


def residual(x, units: int, activation: str):
    inner = layers.Dense(units, activation)(x)
    return layers.Add()([x, layers.Dense(x.shape[-1])(inner)])


def branches(x, units: int, activation: str):
    return layers.Concatenate()([layers.Dense(units, activation)(x), layers.Dense(units)(x)])


def gated(x, units: int, activation: str):
    return layers.Multiply()([layers.Dense(units, activation)(x), layers.Dense(units, "sigmoid")(x)])


# What can follow what, by the number of dims of a row; each takes (x, units, activation).
PARTS: dict[str, tuple[int, Callable]] = {
    "dense": (1, lambda x, units, activation: layers.Dense(units, activation)(x)),
    "residual": (1, residual),
    "branches": (1, branches),
    "gated": (1, gated),
    "norm": (1, lambda x, units, activation: layers.LayerNormalization()(x)),
    "rms": (1, lambda x, units, activation: layers.RMSNormalization()(x)),
    "batch-norm": (1, lambda x, units, activation: layers.BatchNormalization()(x)),
    "activation": (1, lambda x, units, activation: layers.Activation(activation)(x)),
    "own": (1, lambda x, units, activation: Scale()(x)),
    "fold": (1, lambda x, units, activation: layers.Flatten()(layers.Dense(4)(layers.Reshape((-1, 4))(x)))),
    "sequence-dense": (2, lambda x, units, activation: layers.Dense(units, activation)(x)),
    "sequence-norm": (2, lambda x, units, activation: layers.LayerNormalization()(x)),
    "sequence-own": (2, lambda x, units, activation: Scale()(x)),
    "attention": (2, lambda x, units, activation: layers.MultiHeadAttention(4, units // 4)(x, x)),
    "causal": (2, lambda x, units, activation: layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)),
    "grouped": (2, lambda x, units, activation: layers.GroupQueryAttention(4, 4, 2)(x, x)),
    "conv1d": (2, lambda x, units, activation: layers.Conv1D(units, 3, padding="same", activation=activation)(x)),
    "recurrent": (2, lambda x, units, activation: layers.GRU(units, return_sequences=True)(x)),
    "permute": (2, lambda x, units, activation: layers.Permute((2, 1))(layers.Dense(LENGTH)(x))),
    "conv2d": (3, lambda x, units, activation: layers.Conv2D(units, 3, padding="same", activation=activation)(x)),
    "strided": (3, lambda x, units, activation: layers.Conv2D(units, 3, 2, padding="same")(x)),
    "depthwise": (3, lambda x, units, activation: layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)),
    "separable": (3, lambda x, units, activation: layers.SeparableConv2D(units, 3, padding="same")(x)),
    "transposed": (3, lambda x, units, activation: layers.Conv2DTranspose(units, 3, padding="same")(x)),
    "pool": (3, lambda x, units, activation: layers.MaxPooling2D(2, padding="same")(x)),
    "group-norm": (3, lambda x, units, activation: layers.GroupNormalization(4)(x)),
    "image-norm": (3, lambda x, units, activation: layers.BatchNormalization()(x)),
}
# What is not drawn, but named.
NAMED_PARTS: dict[str, Callable] = {
    "frozen": lambda x, units, activation: layers.Dense(units, activation, trainable=False)(x),
    "regularized": lambda x, units, activation: layers.Dense(
        units, activation, kernel_regularizer="l2", activity_regularizer="l2"
    )(x),
}
ENDS = {1: layers.Flatten, 2: layers.GlobalAveragePooling1D, 3: layers.GlobalAveragePooling2D}
NUM_DIMS = {"vectors": 1, "tokens": 2, "images": 3}


def build(kind: str, parts: Sequence[tuple[str, int, str]]) -> keras.Model:
    """A classifier of rows of a kind, made of parts (name, units, activation)."""
    x = inputs = layers.Input(SHAPES[kind], dtype="int32" if kind == "tokens" else None)
    if kind == "tokens":
        x = layers.Embedding(VOCABULARY, 8)(x)
    for name, units, activation in parts:
        part = NAMED_PARTS[name] if name in NAMED_PARTS else PARTS[name][1]
        x = part(x, units, activation)
    return keras.Model(inputs, layers.Dense(4)(ENDS[NUM_DIMS[kind]]()(x)))


def draw_model(draw: Random) -> tuple[str, list[tuple[str, int, str]]]:
    """A kind of rows, and one to four parts that can follow each other."""
    kind = draw.choice(list(NUM_DIMS))
    fitting = [name for name, (dims, _) in PARTS.items() if dims == NUM_DIMS[kind]]
    units, activations = [8, 16, 32], ["relu", "tanh", "softmax"]
    count = draw.randint(1, 4)
    return kind, [(draw.choice(fitting), draw.choice(units), draw.choice(activations)) for _ in range(count)]


def layout_of(model: keras.Model, mesh: tuple[int, int], choices: Sequence[int]) -> dict[str, tuple]:
    """For each variable one of all the layouts its shape allows, chosen by `choices`, over and over."""
    sizes = dict(zip(("batch", "model"), mesh, strict=True))
    found = {}
    for number, variable in enumerate(v for v in model.variables if v.shape):
        fits = [[None, *(axis for axis in sizes if size % sizes[axis] == 0)] for size in variable.shape]
        allowed = [axes for axes in product(*fits) if len(set(filter(None, axes))) == len(list(filter(None, axes)))]
        found[variable.path] = allowed[choices[number % len(choices)] % len(allowed)]
    return {path: axes for path, axes in found.items() if any(axes)}


def rows(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """27 rows, of which the last batch of 8 has 3."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 4, 27)
    if kind == "tokens":
        return generator.integers(0, VOCABULARY, (27, LENGTH)), y
    return generator.normal(size=(27, *SHAPES[kind])).astype("float32"), y


def train(kind: str, parts, seed: int = 5) -> dict:
    """Trains 4 steps; the weights and predictions after them."""
    keras.utils.set_random_seed(seed)
    model = build(kind, parts)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Plain Keras takes the norm of the single rows of a table's gradient, before equal rows are added.
    clip = None if kind == "tokens" else 1.0
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=clip), loss)
    x, y = rows(kind)
    history = model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    predictions = model.predict(x[:9], batch_size=8, verbose=0)
    held = [getattr(variable, "local_shape", tuple(variable.shape)) for variable in model.weights]
    return {
        "weights": model.get_weights(),
        "predictions": predictions,
        "logs": history.history,
        "held": sum(int(np.prod(shape)) for shape in held),
        "parameters": sum(int(np.prod(variable.shape)) for variable in model.weights),
    }


def train_divided(kind: str, parts, mesh: tuple[int, int], choices: Sequence[int]) -> dict:
    """Trains on a mesh, with a layout for each variable by its whole path."""
    from tests.layout_tasks import dividing

    keras.utils.clear_session(free_memory=False)
    layout = layout_of(build(kind, parts), mesh, choices)
    keras.utils.clear_session(free_memory=False)
    with dividing(layout, mesh) as about:
        return {**train(kind, parts), **about}
