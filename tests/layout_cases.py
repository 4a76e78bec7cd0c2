"""Models with layouts for their variables, each trained by plain Keras in one process and by the ranks of a mesh.

Nothing here imports keras_par: the same lines run in both.
"""

from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
from keras import layers, ops

LAYOUT_CASES: dict[str, "LayoutCase"] = {}
VOCABULARY, LENGTH = 24, 6


@dataclass(frozen=True)
class LayoutCase:
    """A model and how its variables are divided.

    Args:
        model: returns the model, not compiled.
        layout: patterns of variable paths and the axes of their dims.
        data: returns x and y, of 75 rows.
        loss: of the training.
    """

    model: Callable[[], keras.Model]
    layout: dict[str, tuple]
    data: Callable[[], tuple]
    loss: str = "sparse_categorical_crossentropy"


def case(name: str, layout: dict[str, tuple], data, **options):
    def register(model):
        LAYOUT_CASES[name] = LayoutCase(model, layout, data, **options)
        return model

    return register


def labels(num: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, num, 75)


def vectors():
    return np.random.default_rng(0).normal(size=(75, 8)).astype("float32"), labels()


def tokens():
    return np.random.default_rng(0).integers(0, VOCABULARY, (75, LENGTH)), labels()


def next_tokens():
    x = np.random.default_rng(0).integers(0, VOCABULARY, (75, LENGTH + 1))
    return x[:, :-1], x[:, 1:]


def images(*sizes: int):
    def make():
        return np.random.default_rng(0).normal(size=(75, *sizes)).astype("float32"), labels()

    return make


def classifier(shape: tuple, *parts, head: bool = True, dtype: str | None = None) -> keras.Model:
    """`parts` between an input and, with `head`, the logits of 4 classes."""
    end = [layers.Dense(4, name="head")] if head else []
    return keras.Sequential([layers.Input(shape, dtype=dtype), *parts, *end])


# Dense layers.


@case("dense-columns", {".*up/kernel": (None, "model"), ".*up/bias": ("model",)}, vectors)
def _():
    return classifier((8,), layers.Dense(16, "tanh", name="pre"), layers.Dense(12, "relu", name="up"))


@case("dense-rows", {".*down/kernel": ("model", None)}, vectors)
def _():
    return classifier((8,), layers.Dense(16, "tanh", name="pre"), layers.Dense(12, "relu", name="down"))


BLOCK = {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}


@case("dense-columns-rows", BLOCK, vectors)
def _():
    up, down = layers.Dense(32, "gelu", name="up"), layers.Dense(16, name="down")
    return classifier((8,), layers.Dense(16, "tanh", name="pre"), up, layers.Dropout(0.2, seed=3), down)


@case("dense-columns-columns", {".*kernel": (None, "model"), ".*bias": ("model",)}, vectors)
def _():
    return classifier((8,), layers.Dense(16, "tanh"), layers.Dense(12, "relu"))


@case("einsum-dense", {".*up/kernel": (None, "model", None), ".*down/kernel": ("model", None, None)}, vectors)
def _():
    up = layers.EinsumDense("ab,bcd->acd", (4, 6), bias_axes="cd", activation="relu", name="up")
    down = layers.EinsumDense("acd,cde->ae", (8,), bias_axes="e", name="down")
    return classifier((8,), layers.Dense(8), up, down)


# Embeddings.


@case("embedding-by-vocabulary", {".*embeddings": ("model", None)}, tokens)
def _():
    return classifier((LENGTH,), layers.Embedding(VOCABULARY, 8), layers.Flatten(), dtype="int32")


@case("embedding-by-feature", {".*embeddings": (None, "model")}, tokens)
def _():
    table = layers.Embedding(VOCABULARY, 8, mask_zero=True)
    return classifier((LENGTH,), table, layers.GlobalAveragePooling1D(), dtype="int32")


@case(
    "vocabulary",
    {".*embeddings": ("model", None), ".*logits/kernel": (None, "model"), ".*logits/bias": ("model",)},
    next_tokens,
)
def _():
    table, logits = layers.Embedding(VOCABULARY, 8), layers.Dense(VOCABULARY, name="logits")
    return classifier((LENGTH,), table, layers.Dense(8, "tanh"), logits, head=False, dtype="int32")


@case("softmax-of-vocabulary", {".*words/kernel": (None, "model"), ".*words/bias": ("model",)}, next_tokens)
def _():
    # Logits so far apart that a probability without them would be cut off.
    wide = keras.initializers.RandomNormal(stddev=30.0, seed=2)
    words = layers.Dense(VOCABULARY, "softmax", kernel_initializer=wide, name="words")
    return classifier((LENGTH,), layers.Embedding(VOCABULARY, 8), words, head=False, dtype="int32")


# Attention.


HEADS = {
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
}


def attention(layer, **call) -> keras.Model:
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8, mask_zero=True)(x)
    x = layers.LayerNormalization()(x + layer(x, x, **call))
    return keras.Model(inputs, layers.Dense(VOCABULARY, name="logits")(x))


@case("attention", HEADS, next_tokens)
def _():
    return attention(layers.MultiHeadAttention(4, 6, name="attention"), use_causal_mask=True)


@case("attention-block", HEADS | BLOCK, next_tokens)
def _():
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8)(x)
    x = x + layers.MultiHeadAttention(4, 4, name="attention")(x, x, use_causal_mask=True)
    x = x + layers.Dense(8, name="down")(layers.Dense(16, "relu", name="up")(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(VOCABULARY, name="logits")(x))


@case("attention-with-dropout", HEADS, next_tokens)
def _():
    return attention(layers.MultiHeadAttention(4, 6, dropout=0.2, seed=5, name="attention"))


@case("grouped-attention", HEADS, next_tokens)
def _():
    return attention(layers.GroupQueryAttention(6, 4, 4, name="attention"))


QUERY_HEADS = {".*query/kernel": (None, "model", None), ".*attention_output/kernel": ("model", None, None)}


@case("grouped-attention-whole-keys", QUERY_HEADS, next_tokens)
def _():
    return attention(layers.GroupQueryAttention(6, 4, 1, name="attention"), use_causal_mask=True)


# Convolutions and pooling.


def convolutions(rank: int, layer) -> keras.Model:
    pool = getattr(layers, f"GlobalAveragePooling{rank}D")()
    first = getattr(layers, f"Conv{rank}D")(8, 3, padding="same", activation="relu", name="first")
    return classifier((5,) * rank + (3,), first, layer, pool)


def kernels(rank: int, *axes) -> tuple:
    return (None,) * rank + axes


for _rank, _kind in ((1, layers.Conv1D), (2, layers.Conv2D), (3, layers.Conv3D)):

    @case(
        f"conv{_rank}d",
        {
            ".*first/kernel": kernels(_rank, None, "model"),
            ".*first/bias": ("model",),
            ".*second/kernel": kernels(_rank, "model", None),
        },
        images(*(5,) * _rank, 3),
    )
    def _(rank=_rank, kind=_kind):
        return convolutions(rank, kind(8, 3, padding="same", activation="relu", name="second"))


@case(
    "depthwise-conv",
    {
        ".*first/kernel": kernels(2, None, "model"),
        ".*depth/kernel": kernels(2, "model", None),
        ".*depth/bias": ("model",),
    },
    images(5, 5, 3),
)
def _():
    return convolutions(2, layers.DepthwiseConv2D(3, padding="same", activation="relu", name="depth"))


@case(
    "grouped-conv",
    {".*first/kernel": kernels(2, None, "model"), ".*groups/kernel": kernels(2, None, "model")},
    images(5, 5, 3),
)
def _():
    return convolutions(2, layers.Conv2D(8, 3, groups=2, padding="same", name="groups"))


@case(
    "separable-conv",
    {".*(first|pointwise)_?kernel": kernels(2, None, "model"), ".*first/kernel": kernels(2, None, "model")},
    images(5, 5, 3),
)
def _():
    return convolutions(2, layers.SeparableConv2D(8, 3, padding="same", name="separable"))


@case(
    "transposed-conv",
    {".*first/kernel": kernels(2, None, "model"), ".*second/kernel": kernels(2, "model", None)},
    images(5, 5, 3),
)
def _():
    return convolutions(2, layers.Conv2DTranspose(8, 3, padding="same", name="second"))


@case("pooling", {".*first/kernel": kernels(2, None, "model")}, images(5, 5, 3))
def _():
    return convolutions(2, layers.MaxPooling2D(2))


# Normalization of divided channels.


CHANNELS = {".*up/kernel": (None, "model"), ".*norm.*/(gamma|beta|moving_mean|moving_variance)": ("model",)}
DOWN = {".*down/kernel": ("model", None)}


def normalized(norm) -> keras.Model:
    # A bias before a norm has a gradient of zero, of which Adam makes steps of rounding errors.
    up, down = layers.Dense(16, use_bias=False, name="up"), layers.Dense(8, "relu", name="down")
    return classifier((8,), up, norm, layers.ReLU(), down)


@case("batch-normalization", CHANNELS | DOWN, vectors)
def _():
    return normalized(layers.BatchNormalization(synchronized=True, name="norm"))


@case(
    "layer-normalization",
    {**CHANNELS, **DOWN} | {".*norm.*/(gamma|beta|moving_mean|moving_variance)": ("model",)},
    vectors,
)
def _():
    return normalized(layers.LayerNormalization(name="norm"))


@case("group-normalization", CHANNELS | DOWN, vectors)
def _():
    return normalized(layers.GroupNormalization(4, name="norm"))


@case("layer-normalization-whole", {".*up/kernel": (None, "model")} | DOWN, vectors)
def _():
    return normalized(layers.LayerNormalization(name="norm"))


@case("rms-normalization", {".*up/kernel": (None, "model"), ".*norm/scale": ("model",)} | DOWN, vectors)
def _():
    return normalized(layers.RMSNormalization(name="norm"))


# Anything else.


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


@case("custom-layer", {".*matrix": (None, "model"), ".*table": ("model", None)}, vectors)
def _():
    return classifier((8,), Mixture())


@case("custom-layer-other-dims", {".*matrix": ("model", None), ".*table": (None, "model")}, vectors)
def _():
    return classifier((8,), Mixture())


class OfLists(layers.Layer):
    """Gives lists of tensors to operations that take one."""

    def call(self, x):
        return ops.sum([x, ops.tanh(x)], axis=0) + ops.max([x, 0.5 * x], axis=0)


@case("lists", {".*up/kernel": (None, "model"), ".*down/kernel": ("model", None)}, vectors)
def _():
    return classifier((8,), layers.Dense(16, name="up"), OfLists(), layers.Dense(8, name="down"))


@case("recurrent", {".*lstm.*/kernel": (None, "model"), ".*recurrent_kernel": ("model", None)}, tokens)
def _():
    table, recurrent = layers.Embedding(VOCABULARY, 8), layers.LSTM(8, name="lstm")
    return classifier((LENGTH,), table, recurrent, dtype="int32")


@case("over-the-batch", {".*kernel": ("batch", None), ".*embeddings": (None, "batch")}, tokens)
def _():
    return classifier((LENGTH,), layers.Embedding(VOCABULARY, 8), layers.Flatten(), layers.Dense(8), dtype="int32")


@case("over-batch-and-model", {".*up/kernel": ("batch", "model"), ".*down/kernel": ("model", "batch")}, vectors)
def _():
    return classifier((8,), layers.Dense(16, "relu", name="up"), layers.Dense(8, name="down"))


@case(
    "outputs",
    {".*up/output": ("batch", "model"), ".*down/kernel": ("model", None), ".*pre/output": ("batch", None)},
    vectors,
)
def _():
    pre, up = layers.Dense(8, "tanh", name="pre"), layers.Dense(16, "relu", name="up")
    return classifier((8,), pre, up, layers.Dense(8, name="down"))


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


@case(
    "subclassed", {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}, vectors
)
def _():
    return ByHand()
