"""Models with layouts for their variables, each trained by plain Keras in one process and by the ranks of a mesh.

Nothing here imports keras_par: the same lines run in both.
"""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
from keras import layers, ops

VOCABULARY, LENGTH = 24, 6


class LayoutCase(NamedTuple):
    """A model and how its variables are divided.

    Args:
        layout: patterns of variable paths and the axes of their dims.
        data: returns x and y, of 75 rows.
        model: returns the model, not compiled.
    """

    layout: dict[str, tuple]
    data: Callable[[], tuple]
    model: Callable[[], keras.Model]


def vectors():
    return rows_of(8)


def tokens():
    return np.random.default_rng(0).integers(0, VOCABULARY, (75, LENGTH)), labels()


def next_tokens():
    x = np.random.default_rng(0).integers(0, VOCABULARY, (75, LENGTH + 1))
    return x[:, :-1], x[:, 1:]


def images():
    return rows_of(5, 5, 3)


def rows_of(*sizes: int):
    return np.random.default_rng(0).normal(size=(75, *sizes)).astype("float32"), labels()


def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 4, 75)


def classifier(shape: tuple, *parts, dtype: str | None = None) -> keras.Model:
    """`parts` between an input and the logits of 4 classes."""
    return keras.Sequential([layers.Input(shape, dtype=dtype), *parts, layers.Dense(4, name="head")])


def of_vectors(*parts) -> keras.Model:
    return classifier((8,), *parts)


def dense(units: int, activation: str | None = None, name: str | None = None, **options) -> layers.Layer:
    return layers.Dense(units, activation, name=name, **options)


def pre() -> layers.Layer:
    """A layer before those that are divided."""
    return dense(16, "tanh", "pre")


def of_tokens(*parts, mask: bool = False) -> keras.Model:
    return classifier((LENGTH,), layers.Embedding(VOCABULARY, 8, mask_zero=mask), *parts, dtype="int32")


def of_words(*parts) -> keras.Model:
    """Ends with probabilities or logits of the next word."""
    return keras.Sequential([layers.Input((LENGTH,), dtype="int32"), layers.Embedding(VOCABULARY, 8), *parts])


def attention(layer, **call) -> keras.Model:
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8, mask_zero=True)(x)
    x = layers.LayerNormalization()(x + layer(x, x, **call))
    return keras.Model(inputs, layers.Dense(VOCABULARY, name="logits")(x))


def attention_block() -> keras.Model:
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8)(x)
    x = x + layers.MultiHeadAttention(4, 4, name="attention")(x, x, use_causal_mask=True)
    x = x + dense(8, name="down")(dense(16, "relu", "up")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, dense(VOCABULARY, name="logits")(x))


def convolutions(layer, rank: int = 2) -> keras.Model:
    """`layer` behind a convolution over so many dims."""
    pool = getattr(layers, f"GlobalAveragePooling{rank}D")()
    first = getattr(layers, f"Conv{rank}D")(8, 3, padding="same", activation="relu", name="first")
    return classifier((5,) * rank + (3,), first, layer, pool)


def convolution_of(rank: int) -> LayoutCase:
    """Two convolutions over so many dims, one by columns and one by rows."""
    layout = {".*first/kernel": kernel(None, "model", rank=rank), ".*first/bias": ("model",)}
    layout |= {".*second/kernel": kernel("model", None, rank=rank)}
    kind = getattr(layers, f"Conv{rank}D")
    second = {"padding": "same", "activation": "relu", "name": "second"}
    return LayoutCase(layout, lambda: rows_of(*(5,) * rank, 3), lambda: convolutions(kind(8, 3, **second), rank))


def kernel(*axes, rank: int = 2) -> tuple:
    """The axes of channels behind dims that nothing divides."""
    return (None,) * rank + axes


def normalized(norm) -> keras.Model:
    # A bias before a norm has a gradient of zero, of which Adam makes steps of rounding errors.
    return of_vectors(dense(16, name="up", use_bias=False), norm, layers.ReLU(), dense(8, "relu", "down"))


class Mixture(layers.Layer):
    """Reads its variables twice, by operations that have rules and by some that have none."""

    def build(self, shape):
        self.matrix = self.add_weight(shape=(shape[-1], 8), name="matrix")
        self.table = self.add_weight(shape=(8, 4), name="table", regularizer="l2", constraint="non_neg")

    def call(self, x):
        x = ops.matmul(x, self.matrix) + ops.sum(self.matrix) * 0.01
        x = ops.tanh(x) * ops.mean(self.table, axis=1)
        values, _ = ops.top_k(self.table, 2)
        return ops.concatenate([x, x[:, ::2] @ self.table[:4]], axis=-1) + ops.sum(values)


class OfLists(layers.Layer):
    """Gives lists of tensors to operations that take one."""

    def call(self, x):
        return ops.sum([x, ops.tanh(x)], axis=0) + ops.max([x, 0.5 * x], axis=0)


class ByHand(keras.Model):
    """A subclassed model that adds, slices and reshapes between its layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = layers.Dense(16, name="up"), layers.Dense(8, name="down"), layers.Dense(4)

    def call(self, x):
        y = self.up(x)
        y = ops.relu(y) + 0.5 * y * ops.sigmoid(y)
        y = ops.reshape(ops.transpose(ops.reshape(y, (-1, 4, 4)), (0, 2, 1)), (-1, 16))
        return self.head(self.down(y - ops.max(y, axis=-1, keepdims=True)) + y[:, :8])


COLUMNS, ROWS = {".*up/kernel": (None, "model")}, {".*down/kernel": ("model", None)}
BLOCK = COLUMNS | {".*up/bias": ("model",)} | ROWS
HEADS = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
}
QUERY_HEADS = {".*query/kernel": (None, "model", None), ".*attention_output/kernel": ("model", None, None)}
WORDS = {".*embeddings": ("model", None), ".*logits/kernel": (None, "model"), ".*logits/bias": ("model",)}
FIRST = {".*first/kernel": kernel(None, "model")}
DEPTH = {".*depth/kernel": kernel("model", None), ".*depth/bias": ("model",)}
CHANNELS = COLUMNS | {".*norm.*/(gamma|beta|moving_mean|moving_variance)": ("model",)} | ROWS
OUTPUTS = {".*up/output": ("batch", "model"), ".*down/kernel": ("model", None), ".*pre/output": ("batch", None)}
# Logits so far apart that a probability without them would be cut off.
FAR_APART = {"kernel_initializer": keras.initializers.RandomNormal(stddev=30.0, seed=2)}

ALL: dict[str, tuple[dict[str, tuple], Callable[[], tuple], Callable[[], keras.Model]]] = {
    "dense-columns": (
        COLUMNS | {".*up/bias": ("model",)},
        vectors,
        lambda: of_vectors(pre(), dense(12, "relu", "up")),
    ),
    "dense-rows": (ROWS, vectors, lambda: of_vectors(pre(), dense(12, "relu", "down"))),
    "dense-columns-rows": (
        BLOCK,
        vectors,
        lambda: of_vectors(pre(), dense(32, "gelu", "up"), layers.Dropout(0.2, seed=3), dense(16, name="down")),
    ),
    "dense-columns-columns": (
        {".*kernel": (None, "model"), ".*bias": ("model",)},
        vectors,
        lambda: of_vectors(dense(16, "tanh"), dense(12, "relu")),
    ),
    "einsum-dense": (
        {".*up/kernel": (None, "model", None), ".*down/kernel": ("model", None, None)},
        vectors,
        lambda: of_vectors(
            dense(8),
            layers.EinsumDense("ab,bcd->acd", (4, 6), bias_axes="cd", activation="relu", name="up"),
            layers.EinsumDense("acd,cde->ae", (8,), bias_axes="e", name="down"),
        ),
    ),
    "embedding-by-vocabulary": ({".*embeddings": ("model", None)}, tokens, lambda: of_tokens(layers.Flatten())),
    "embedding-by-feature": (
        {".*embeddings": (None, "model")},
        tokens,
        lambda: of_tokens(layers.GlobalAveragePooling1D(), mask=True),
    ),
    "vocabulary": (WORDS, next_tokens, lambda: of_words(dense(8, "tanh"), dense(VOCABULARY, name="logits"))),
    "softmax-of-vocabulary": (
        {".*words/kernel": (None, "model"), ".*words/bias": ("model",)},
        next_tokens,
        lambda: of_words(dense(VOCABULARY, "softmax", "words", **FAR_APART)),
    ),
    "attention": (
        HEADS,
        next_tokens,
        lambda: attention(layers.MultiHeadAttention(4, 6, name="attention"), use_causal_mask=True),
    ),
    "attention-block": (HEADS | BLOCK, next_tokens, attention_block),
    "attention-with-dropout": (
        HEADS,
        next_tokens,
        lambda: attention(layers.MultiHeadAttention(4, 6, dropout=0.2, seed=5, name="attention")),
    ),
    "grouped-attention": (
        HEADS,
        next_tokens,
        lambda: attention(layers.GroupQueryAttention(6, 4, 4, name="attention")),
    ),
    "grouped-attention-whole-keys": (
        QUERY_HEADS,
        next_tokens,
        lambda: attention(layers.GroupQueryAttention(6, 4, 1, name="attention"), use_causal_mask=True),
    ),
    **{f"conv{rank}d": convolution_of(rank) for rank in (1, 2, 3)},
    "depthwise-conv": (
        FIRST | DEPTH,
        images,
        lambda: convolutions(layers.DepthwiseConv2D(3, padding="same", activation="relu", name="depth")),
    ),
    "grouped-conv": (
        FIRST | {".*groups/kernel": kernel(None, "model")},
        images,
        lambda: convolutions(layers.Conv2D(8, 3, groups=2, padding="same", name="groups")),
    ),
    "separable-conv": (
        {".*(first|pointwise)_?kernel": kernel(None, "model")} | FIRST,
        images,
        lambda: convolutions(layers.SeparableConv2D(8, 3, padding="same", name="separable")),
    ),
    "transposed-conv": (
        FIRST | {".*second/kernel": kernel("model", None)},
        images,
        lambda: convolutions(layers.Conv2DTranspose(8, 3, padding="same", name="second")),
    ),
    "pooling": (FIRST, images, lambda: convolutions(layers.MaxPooling2D(2))),
    "batch-normalization": (
        CHANNELS,
        vectors,
        lambda: normalized(layers.BatchNormalization(synchronized=True, name="norm")),
    ),
    "layer-normalization": (CHANNELS, vectors, lambda: normalized(layers.LayerNormalization(name="norm"))),
    "group-normalization": (CHANNELS, vectors, lambda: normalized(layers.GroupNormalization(4, name="norm"))),
    "layer-normalization-whole": (COLUMNS | ROWS, vectors, lambda: normalized(layers.LayerNormalization(name="norm"))),
    "rms-normalization": (
        COLUMNS | {".*norm/scale": ("model",)} | ROWS,
        vectors,
        lambda: normalized(layers.RMSNormalization(name="norm")),
    ),
    "custom-layer": (
        {".*matrix": (None, "model"), ".*table": ("model", None)},
        vectors,
        lambda: of_vectors(Mixture()),
    ),
    "custom-layer-other-dims": (
        {".*matrix": ("model", None), ".*table": (None, "model")},
        vectors,
        lambda: of_vectors(Mixture()),
    ),
    "lists": (
        COLUMNS | ROWS,
        vectors,
        lambda: of_vectors(dense(16, name="up"), OfLists(), dense(8, name="down")),
    ),
    "recurrent": (
        {".*lstm.*/kernel": (None, "model"), ".*recurrent_kernel": ("model", None)},
        tokens,
        lambda: of_tokens(layers.LSTM(8, name="lstm")),
    ),
    "over-the-batch": (
        {".*kernel": ("batch", None), ".*embeddings": (None, "batch")},
        tokens,
        lambda: of_tokens(layers.Flatten(), dense(8)),
    ),
    "over-batch-and-model": (
        {".*up/kernel": ("batch", "model"), ".*down/kernel": ("model", "batch")},
        vectors,
        lambda: of_vectors(dense(16, "relu", "up"), dense(8, name="down")),
    ),
    "outputs": (
        OUTPUTS,
        vectors,
        lambda: of_vectors(dense(8, "tanh", "pre"), dense(16, "relu", "up"), dense(8, name="down")),
    ),
    "subclassed": (BLOCK, vectors, ByHand),
}
LAYOUT_CASES = {name: LayoutCase(*case) for name, case in ALL.items()}
