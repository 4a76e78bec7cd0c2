"""Ways to train one divided model that no values of `tests/trainings.py` make: in half precision, with constraints, ...

Nothing here imports keras_par: the same lines run in both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers, optimizers

from tests.layout_cases import VOCABULARY, next_tokens

# Divided by rows, by columns, on both sides of a bias that is not, and by vocabulary.
LAYOUT = {
    ".*table/embeddings": ("model", None),
    ".*up/kernel": (None, "model"),
    ".*up/bias": ("model",),
    ".*down/kernel": ("model", None),
    ".*logits/kernel": (None, "model"),
    ".*first/kernel": (None, "model"),
}


@dataclass(frozen=True)
class Training:
    """A way to train.

    Args:
        optimizer: returns it.
        model: arguments of `network`.
        compile: further arguments of `compile`.
        policy: of dtypes.
        tolerance: relative distance of all weights that rounding explains.
    """

    optimizer: Callable[[], keras.optimizers.Optimizer]
    model: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    policy: str = "float32"
    tolerance: float = 1e-5


def network(**options) -> keras.Model:
    """Tokens in, logits of tokens out; `options` are of its divided layers."""
    x = inputs = layers.Input((6,), dtype="int32")
    x = layers.Dense(8, "tanh", name="first")(layers.Embedding(VOCABULARY, 8, name="table")(x))
    up, down = layers.Dense(16, "gelu", name="up", **options), layers.Dense(8, name="down", **options)
    x = layers.LayerNormalization()(x + down(up(x)))
    return keras.Model(inputs, layers.Dense(VOCABULARY, name="logits", dtype="float32")(x))


def data():
    return next_tokens()


def adam() -> keras.optimizers.Optimizer:
    return optimizers.Adam(1e-2)


TRAININGS = {
    "lion": Training(lambda: optimizers.Lion(1e-3)),
    "overflow": Training(lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), initial_scale=2.0**40)),
    "max-norm": Training(adam, {"kernel_constraint": keras.constraints.MaxNorm(0.5, axis=0)}),
    "unit-norm": Training(adam, {"kernel_constraint": keras.constraints.UnitNorm(axis=[0, 1])}),
    "orthogonal": Training(adam, {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer(mode="rows")}),
    "xla": Training(adam, compile={"jit_compile": True}),
    "mixed-float16": Training(lambda: optimizers.SGD(0.1), policy="mixed_float16", tolerance=2e-3),
    "mixed-bfloat16": Training(lambda: optimizers.SGD(0.1), policy="mixed_bfloat16", tolerance=1e-2),
}
