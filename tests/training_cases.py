"""Ways to train one divided model, with optimizers, precisions, clipping, constraints; each against one process.

Nothing here imports keras_par: the same lines run in both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
from keras import layers, optimizers

from tests.layout_cases import VOCABULARY, next_tokens

TRAININGS: dict[str, "Training"] = {}

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


def network(table: bool = True, **options) -> keras.Model:
    """Tokens in, logits of tokens out; `options` are of its divided layers."""
    x = inputs = layers.Input((6,), dtype="int32")
    # Adam squares the gradients of single rows of a table one by one, optimizers of whole variables do not.
    rows = layers.Embedding(VOCABULARY, 8, name="table") if table else layers.CategoryEncoding(VOCABULARY, "one_hot")
    x = layers.Dense(8, "tanh", name="first")(rows(x))
    up, down = layers.Dense(16, "gelu", name="up", **options), layers.Dense(8, name="down", **options)
    x = layers.LayerNormalization()(x + down(up(x)))
    return keras.Model(inputs, layers.Dense(VOCABULARY, name="logits", dtype="float32")(x))


def data():
    return next_tokens()


for _name, _optimizer in {
    "sgd-nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "rmsprop": lambda: optimizers.RMSprop(1e-2, momentum=0.5, centered=True),
    "adamw": lambda: optimizers.AdamW(1e-2, weight_decay=0.1),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "adamax": lambda: optimizers.Adamax(1e-2),
    "nadam": lambda: optimizers.Nadam(1e-2),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lion": lambda: optimizers.Lion(1e-3),
    "clipnorm": lambda: optimizers.SGD(0.3, clipnorm=0.05),
    "clipvalue": lambda: optimizers.Adam(1e-2, clipvalue=0.01),
    "accumulation": lambda: optimizers.Adam(1e-2, gradient_accumulation_steps=3, global_clipnorm=0.3),
    "moving-average": lambda: optimizers.Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "loss-scale": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(1e-2), initial_scale=2.0**40),
    "loss-scale-accumulation": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, gradient_accumulation_steps=2), initial_scale=8.0
    ),
}.items():
    TRAININGS[_name] = Training(_optimizer)

for _name, _optimizer in {
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "lamb": lambda: optimizers.Lamb(1e-2),
    "muon": lambda: optimizers.Muon(1e-2),
}.items():
    TRAININGS[_name] = Training(_optimizer, {"table": False})


def adam() -> keras.optimizers.Optimizer:
    return optimizers.Adam(1e-2)


TRAININGS["max-norm"] = Training(adam, {"kernel_constraint": keras.constraints.MaxNorm(0.5, axis=0)})
TRAININGS["unit-norm"] = Training(adam, {"kernel_constraint": keras.constraints.UnitNorm(axis=[0, 1])})
REGULARIZER = keras.regularizers.L1L2(1e-3, 1e-2)
ORTHOGONAL = keras.regularizers.OrthogonalRegularizer(mode="rows")
TRAININGS["regularized"] = Training(adam, {"kernel_regularizer": REGULARIZER, "activity_regularizer": "l2"})
TRAININGS["orthogonal"] = Training(adam, {"kernel_regularizer": ORTHOGONAL})
TRAININGS["eager"] = Training(adam, compile={"run_eagerly": True})
TRAININGS["several-steps"] = Training(adam, compile={"steps_per_execution": 2})
TRAININGS["xla"] = Training(adam, compile={"jit_compile": True})
TRAININGS["mixed-float16"] = Training(lambda: optimizers.SGD(0.1), policy="mixed_float16", tolerance=2e-3)
TRAININGS["mixed-bfloat16"] = Training(lambda: optimizers.SGD(0.1), policy="mixed_bfloat16", tolerance=1e-2)
TRAININGS["float64"] = Training(adam, policy="float64")
