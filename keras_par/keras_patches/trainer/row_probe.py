"""Probes, before a model's first step, losses and layers that look across the rows of a batch."""

import logging
import warnings
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_par.comm.communicator import SoloCommunicator
from keras_par.comm.counted import CountedCommunicator
from keras_par.keras_patches.step.halves import CLOSE, HALF_CLOSE, alike, num_rows_of, rows_of, unchanged
from keras_par.keras_patches.step.known_losses import Kind, own_kind
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.trainer.step_program import Program
from keras_par.sharding.step import Probed, Step
from keras_par.sharding.variable_views import sharded

FEW, MANY = 8, 32  # rows that the model is called with: to look at its layers, and at losses of the user's own

logger = logging.getLogger("keras_par")


def unknown_losses(model: keras.Model) -> list[keras.losses.Loss]:
    """The losses of `compile` of which Keras does not tell what they give."""
    compiled = getattr(model._compile_loss, "_flat_losses", None) or []
    return [each.loss for each in compiled if own_kind(each.loss) is None]


def may_mix_rows(model: keras.Model) -> bool:
    """False if a model is made of Keras's own layers alone, none of which looks across the rows of its batch.

    Batch normalization does while it trains, and is left out: the strategy knows of it.
    """
    return any(map(is_unknown, layers(model)))


def is_unknown(layer: keras.layers.Layer) -> bool:
    """True for a layer that calls what is not Keras's, may work along dim 0, or is a graph with operations in it."""
    kind = type(layer)
    code = kind.call if isinstance(layer, keras.Model) else kind  # a model may have a step of its own alone
    if not code.__module__.startswith(("keras.src.layers.", "keras.src.models.")):
        return True
    called = [getattr(value, "__module__", None) or "" for value in vars(layer).values() if callable(value)]
    if not all(module.startswith(("keras.src.", "keras_par.")) for module in called):
        return True
    axes = [axis for axis in tree.flatten(getattr(layer, "axis", None)) if axis is not None]
    operations = getattr(layer, "operations", ())
    return any(axis == 0 or axis < -1 for axis in axes) or not all(
        isinstance(o, keras.layers.Layer) for o in operations
    )


def kinds_of(program: Program, batch: Any) -> list[Kind]:
    """What the model's `unknown_losses` give, in their order, found by calling the model with rows of a batch.

    A loss that cannot be tried is taken for one that needs the whole batch. What the calls change is put back.

    Warns:
        if the model's output for a row depends on other rows.
    """
    model, losses = program.model, unknown_losses(program.model)
    kinds: dict[int, Kind] = {}
    if batch is not None and not sharded(model.variables):
        try:
            with unchanged(model):
                call(program, batch, kinds, MANY if losses else FEW)
        except Exception as error:  # a model that is not called like this, or a batch that is not Keras's
            logger.debug("keras-par: the rows of '%s' were not looked at: %r", model.name, error)
    return [kinds.get(id(loss), "batch") for loss in losses]


def call(program: Program, batch: Any, kinds: dict[int, Kind], most_rows: int) -> None:
    """Calls the model with some rows and with a single one of them, and its losses; fills `kinds`."""
    model, binding = program.model, program.binding
    given = num_rows_of(batch)
    rows = np.arange(min(given, most_rows) // 2 * 2)
    if not len(rows):
        return
    alone = CountedCommunicator(SoloCommunicator())
    step = Step(binding, len(rows), len(rows), thin=False, probed=Probed(kinds), communicator=alone)
    with binding.scope(), step.current():
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(rows_of(batch, given, rows))
        outputs = model(x, training=False)
        if unknown_losses(model):
            model._compile_loss(y, outputs, sample_weight)
        # A row with rows before and behind it, of which it may depend. What draws numbers differs from call to call.
        middle = rows[len(rows) // 2 :][:1]
        depends = not gives_alike(model, x, outputs, rows, middle) and gives_alike(model, x, outputs, rows, rows)
    if depends and not alone.calls:
        warnings.warn(
            f"keras-par: what '{model.name}' gives for a row depends on the other rows of its batch, of which each "
            "rank sees its own, so that ranks train on something else than one process: in the layer that looks "
            "across rows, bring them together by kp.ops.all_gather, or sums of them by kp.ops.all_reduce.",
            stacklevel=2,
        )


def gives_alike(model: keras.Model, x: Any, outputs: Any, rows: np.ndarray, some: np.ndarray) -> bool:
    """True if the model gives for some rows of `x` what its outputs for all `rows` are."""
    with unchanged(model):
        own = model(rows_of(x, len(rows), some), training=False)
    for all_rows, few in zip(tree.flatten(outputs), tree.flatten(own), strict=True):
        all_rows, few = keras.ops.convert_to_numpy(all_rows), keras.ops.convert_to_numpy(few)
        if not all_rows.ndim or len(all_rows) != len(rows) or not np.issubdtype(all_rows.dtype, np.number):
            continue
        if not alike(few, all_rows[some], CLOSE if all_rows.dtype.itemsize > 2 else HALF_CLOSE):
            return False
    return True
