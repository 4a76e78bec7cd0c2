"""The models and rows that every system trains, so that all do the same work; PyTorch's twins are in torch_rank.py."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Workload:
    """What one epoch is.

    Args:
        rows: makes that many rows, as (inputs, targets).
        build: makes the Keras model, which ends in logits.
        rows_per_rank: of a step.
        num_steps: of an epoch, which should last a second or more, since its begin and end count.
        learning_rate: of plain gradient descent; None means Adam.
    """

    rows: Callable[[int], tuple]
    build: Callable
    rows_per_rank: int
    num_steps: int
    learning_rate: float | None = 0.01


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def images(*shape: int) -> Callable[[int], tuple]:
    def rows(count: int):
        pixels = generator().normal(size=(count, *shape)).astype("float32")
        return pixels, generator().integers(0, 10, count).astype("int32")

    return rows


WIDE, NUM_WIDE = 2048, 6


def mlp():
    import keras
    from keras import layers

    hidden = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(512, "relu")]
    return keras.Sequential([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])


def wide():
    import keras
    from keras import layers

    hidden = [layers.Dense(WIDE, "relu") for _ in range(NUM_WIDE)]
    return keras.Sequential([layers.Input((28, 28, 1)), layers.Flatten(), *hidden, layers.Dense(10)])


def cnn():
    import keras
    from keras import layers

    hidden = [layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, 2, activation="relu"), layers.Flatten()]
    return keras.Sequential([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])


def resnet():
    import keras

    return keras.applications.ResNet50(
        weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation="linear"
    )


TEXT_LENGTH, VOCABULARY, WIDTH, NUM_HEADS, NUM_BLOCKS = 128, 4096, 384, 6, 4


def texts(count: int) -> tuple:
    words = generator().integers(0, VOCABULARY, (count, TEXT_LENGTH + 1)).astype("int32")
    return words[:, :-1], words[:, 1:]


def gpt():
    import keras
    from keras import layers

    class Positions(layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(shape=shape[1:], name="table")

        def call(self, x):
            return x + self.table

    words = layers.Input((TEXT_LENGTH,), dtype="int32")
    x = Positions()(layers.Embedding(VOCABULARY, WIDTH, name="embedding")(words))
    for block in range(NUM_BLOCKS):
        inner = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(NUM_HEADS, WIDTH // NUM_HEADS)(inner, inner, use_causal_mask=True)
        inner = layers.Dense(4 * WIDTH, "gelu", name=f"block_{block}_up")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH, name=f"block_{block}_down")(inner)
    return keras.Model(words, layers.Dense(VOCABULARY, name="logits")(layers.LayerNormalization()(x)))


NUM_USERS, NUM_ITEMS, FACTORS = 400_000, 200_000, 32


def ratings(count: int) -> tuple:
    random = generator()
    users = random.integers(0, NUM_USERS, (count, 1))
    items = random.integers(0, NUM_ITEMS, (count, 1))
    return np.concatenate([users, items], 1).astype("int32"), random.integers(0, 2, count).astype("int32")


def recommender():
    import keras
    from keras import layers

    pair = layers.Input((2,), dtype="int32")
    user = layers.Embedding(NUM_USERS, FACTORS)(pair[:, 0])
    item = layers.Embedding(NUM_ITEMS, FACTORS)(pair[:, 1])
    x = layers.Dense(64, "relu")(layers.Concatenate()([user, item]))
    return keras.Model(pair, layers.Dense(2)(x))


WORKLOADS = {
    "mlp": Workload(images(28, 28, 1), mlp, rows_per_rank=32, num_steps=400),
    "wide": Workload(images(28, 28, 1), wide, rows_per_rank=64, num_steps=6, learning_rate=None),
    "cnn": Workload(images(28, 28, 1), cnn, rows_per_rank=32, num_steps=150),
    "resnet": Workload(images(32, 32, 3), resnet, rows_per_rank=32, num_steps=20),
    "gpt": Workload(texts, gpt, rows_per_rank=4, num_steps=6, learning_rate=None),
    "recommender": Workload(ratings, recommender, rows_per_rank=256, num_steps=100),
}


def share(array: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Every `size`-th row from `rank` on."""
    return np.ascontiguousarray(array[rank::size])
