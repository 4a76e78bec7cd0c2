"""Finds, before a model's first step, losses and layers that look across the rows of a batch."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.losses import Loss

from keras_par.base import generators
from keras_par.comm.solo import SoloCommunicator
from keras_par.keras_patches.inputs.gather_outputs import as_tensor
from keras_par.keras_patches.inputs.row_parts import counting_part, num_rows
from keras_par.keras_patches.inputs.shards import take
from keras_par.keras_patches.step.batch_loss import Kind, own_kind
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.trainer.step_program import Program
from keras_par.sharding.step import Probe, Step
from keras_par.sharding.variable_views import sharded

FEW, MANY = 8, 32  # rows that the model is called with: to look at its layers, and at losses of the user's own
CLOSE, HALF_CLOSE = 1e-3, 5e-2  # relative distances that rounding explains, and where numbers have 16 bits

logger = logging.getLogger("keras_par")


class LoneCommunicator(SoloCommunicator):
    """One rank, which notes that it was asked for others, and if `kp.ops` asked."""

    asked = asked_by_ops = False

    def all_reduce(self, tensors, name, op="sum", sent_as=None):
        self._note(name)
        return super().all_reduce(tensors, name, op, sent_as)

    def all_gather(self, tensor, name):
        self._note(name)
        return super().all_gather(tensor, name)

    def _note(self, name: str) -> None:
        self.asked = True
        self.asked_by_ops |= name.startswith("kp.ops.")


def unknown_losses(model: keras.Model) -> list[Loss]:
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
    count = min(given, most_rows) // 2 * 2
    if not count:
        return
    alone = LoneCommunicator()
    step = Step(binding, count, count, thin=False, probe=Probe(), communicator=alone, kinds_of_losses=kinds)
    with binding.scope(), step.current():
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(some_rows(batch, given, 0, count))
        outputs = model(x, training=False)
        if unknown_losses(model):
            model._compile_loss(y, outputs, sample_weight)

        def is_alike(start: int, stop: int) -> bool:
            with unchanged(model):
                return alike(outputs, model(some_rows(x, count, start, stop), training=False), count, start)

        # A row with rows before and behind it, of which it may depend. What draws numbers differs from call to call.
        middle = count // 2
        depends = not is_alike(middle, middle + 1) and is_alike(0, count)
        if depends and not alone.asked:
            warnings.warn(
                f"keras-par: what '{model.name}' gives for a row depends on the other rows of its batch, of which each "
                "rank sees its own, so that ranks train on something else than one process: in the layer that looks "
                "across rows, bring them together by kp.ops.all_gather, or sums of them by kp.ops.all_reduce.",
                stacklevel=2,
            )


def num_rows_of(batch: Any) -> int:
    return int(num_rows(as_tensor(counting_part(batch))))


def some_rows(nest: Any, given: int, start: int, stop: int) -> Any:
    """Rows [start, stop) of a nest of tensors of `given` rows; what has another number is left whole."""

    def cut(leaf):
        if leaf is None:
            return None
        leaf = as_tensor(leaf)
        if (start, stop) == (0, given):
            return leaf
        return take(leaf, start, stop) if leaf.shape.rank and leaf.shape[0] in (given, None) else leaf

    return tree.map_structure(cut, nest)


def alike(whole: Any, part: Any, count: int, start: int) -> bool:
    """True if outputs of `count` rows have the values that outputs of some of them have, from row `start` on."""
    for all_rows, few in zip(tree.flatten(whole), tree.flatten(part), strict=True):
        all_rows, few = keras.ops.convert_to_numpy(all_rows), keras.ops.convert_to_numpy(few)
        if not all_rows.ndim or len(all_rows) != count or not np.issubdtype(all_rows.dtype, np.number):
            continue
        own = all_rows[start : start + len(few)].astype("float64")
        if own.shape != few.shape:
            return False
        close = CLOSE if all_rows.dtype.itemsize > 2 else HALF_CLOSE
        if np.any(np.abs(own - few) > close * np.max(np.abs(own), initial=0)):
            return False
    return True


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Puts back what calls of a model change: variables that are not trained, and generators of Python and NumPy."""
    variables = [*model.non_trainable_variables, *model.metrics_variables]
    variables += [generator.state for layer in model._flatten_layers() for generator in layer._seed_generators]
    before = [(variable, tf.identity(variable.value)) for variable in variables]
    try:
        with generators.kept():
            yield
    finally:
        for variable, value in before:
            variable.assign(value)
