"""Ties a model and its optimizers to the strategy they were compiled under."""

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.core import Variable
from keras.src.distribution import distribution_lib

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.reducer import FUSION_MB, Compression, Gradient, check_options, scaled, sum_gradients
from keras_par.seam.patch import wrap
from keras_par.seam.step import Step

ATTRIBUTE = "_keras_par_binding"
MADE_UNDER = "_keras_par_made_under"

_numbers = itertools.count()


@dataclass(frozen=True)
class Options:
    """How a strategy reduces gradients, and whether it starts from rank 0's state."""

    reduction: Literal["mean", "sum"] = "mean"
    fusion_mb: float = FUSION_MB
    compression: Compression = None
    broadcast_variables: bool = True

    def __post_init__(self):
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"keras-par: reduction={self.reduction!r} is unknown, use 'mean' or 'sum'.")
        check_options(self.fusion_mb, self.compression)


class Binding:
    """One model's strategy; `keras_par.seam` finds it on the model and on each of its optimizers."""

    def __init__(self, strategy, options: Options):
        self.strategy = strategy
        self.options = options
        self.prepared = False  # initial state was compared and broadcast
        self._number = next(_numbers)

    @property
    def communicator(self) -> Communicator:
        return world.current()

    @property
    def is_distributed(self) -> bool:
        return self.communicator.size > 1

    def weight(self, step: Step, dtype) -> tf.Tensor:
        """What this rank's loss or gradients are multiplied by, so that the sum over ranks is the reduction."""
        share = step.share(dtype)
        return share * self.communicator.size if self.options.reduction == "sum" else share

    def sum_gradients(self, step: Step, gradients: list[Gradient]) -> list[Gradient]:
        """The weighted gradients summed over ranks. Costs one all-reduce for each bucket."""
        limit = int(self.options.fusion_mb * 2**20)
        name = step.name(f"gradients{self._number}")
        return sum_gradients(step.communicator, gradients, name, limit, self.options.compression)


def of(thing: Any) -> Binding | None:
    """The binding of a model or an optimizer, None where there is none or only one rank."""
    binding = getattr(thing, ATTRIBUTE, None)
    return binding if binding is not None and world.is_started() and binding.is_distributed else None


def weigh(gradients: list[Gradient], weight: tf.Tensor) -> list[Gradient]:
    return [scaled(gradient, weight) for gradient in gradients]


def install() -> None:
    """Notes on each new variable under which strategy it was made."""

    def initialize(original):
        def replacement(self, value):
            setattr(self, MADE_UNDER, distribution_lib.distribution())
            return original(self, value)

        return replacement

    wrap(Variable, "_initialize", initialize)


def bind(model: keras.Model) -> None:
    """Binds a model that is being compiled to the active strategy, or to the one its weights were made under.

    Raises:
        ValueError: the strategy was set after the model was built, or is of a kind that does not work here.
    """
    strategy = distribution_lib.distribution() or next(
        (made for weight in model.weights if (made := getattr(weight, MADE_UNDER, None)) is not None), None
    )
    options = options_of(strategy)
    if options is None:
        return
    early = next((weight.path for weight in model.weights if getattr(weight, MADE_UNDER, None) is None), None)
    if early is not None:
        raise ValueError(
            f"keras-par: the strategy was set after model '{model.name}' was built (its variable '{early}' is "
            "older): first keras.distribution.set_distribution(strategy) or 'with strategy.scope():', then build "
            "and compile the model."
        )
    setattr(model, ATTRIBUTE, Binding(strategy, options))
    bind_optimizers(model)


def options_of(strategy) -> Options | None:
    """The strategy's options; the defaults for Keras's own DataParallel, None for no strategy."""
    if strategy is None:
        return None
    if hasattr(strategy, "keras_par_options"):
        return strategy.keras_par_options
    if isinstance(strategy, distribution_lib.DataParallel):
        return Options()
    raise ValueError(
        f"keras-par: keras.distribution.{type(strategy).__name__} does not work on TensorFlow yet: "
        "use kp.DataParallel()."
    )


def bind_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Binds all optimizers that are attributes of `model`, also those of its own training steps, and returns them."""
    binding = getattr(model, ATTRIBUTE)
    found = {id(value): value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)}
    for optimizer in found.values():
        setattr(optimizer, ATTRIBUTE, binding)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            setattr(optimizer.inner_optimizer, ATTRIBUTE, binding)
    return list(found.values())
