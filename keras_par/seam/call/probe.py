"""Looks once, before the first step, whether the losses of a model are what its strategy takes them for.

A mean over rows counts with a rank's share of them, a sum adds up, and nobody says which one a scalar is. So rank 0
cuts its rows of a batch in two, and compares the loss of both halves with that of all. What a step changes is pruned
from the graph that does this, so that neither variables nor seeds move.
"""

import logging
import random
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_par.seam.call import functions
from keras_par.seam.call.first_batch import made_up, peek
from keras_par.seam.call.program import Program, Split
from keras_par.seam.call.row_probe import (
    LoneCommunicator,
    kinds_of,
    may_mix_rows,
    some_rows,
    unknown_losses,
)
from keras_par.seam.feed.gathering import as_tensor
from keras_par.seam.feed.row_parts import counting_part, num_rows
from keras_par.seam.step.metrics import layers
from keras_par.seam.step.normalization import is_synchronized
from keras_par.seam.update.gradients import OF_BATCH
from keras_par.sharding.step import Step
from keras_par.sharding.views import sharded

CLOSE, NEAR = 1e-3, 0.15  # relative distances: without random numbers, and with them
RANDOM = ("Random", "Multinomial", "Bernoulli", "Gamma", "Poisson")

logger = logging.getLogger("keras_par")


class Seen(NamedTuple):
    """A scalar loss of a step."""

    of_all: float
    first: float
    second: float
    kind: str | None  # "mean", "sum", "neither", or None if that is not clear


def look(program: Program, iterator) -> Iterator:
    """An iterator of the same batches, after a look at the first one, or only at its type.

    Rank 0 looks, and tells the others what it has found. Where there is nothing to find, no rank looks. Losses are left
    to the first trace of the step where it is traced before it reads a batch: that ends at one that it does not know.

    Costs one all-gather of a few bytes, once for training and once for testing, where ranks need what it finds.

    Warns:
        on rank 0, if a loss is taken for what it is not, or a layer looks across the rows of a batch.
    """
    model, binding = program.model, program.binding
    if program.method in binding.probed:
        return iterator
    is_first = not binding.probed
    binding.probed.add(program.method)
    tries, sums = is_first and (may_mix_rows(model) or bool(unknown_losses(model))), may_sum_up(program)
    is_traced = not model.run_eagerly and not tf.config.functions_run_eagerly()
    program.is_first_trace = sums and is_traced and isinstance(iterator, tf.data.Iterator)
    return looked_at(program, iterator, tries, sums and not program.is_first_trace)


def look_at_losses(program: Program, iterator) -> Iterator:
    """As `look`, at losses that the first trace of the step did not know."""
    return looked_at(program, iterator, False, True)


def looked_at(program: Program, iterator, tries: bool, sums: bool) -> Iterator:
    """An iterator of the same batches, after a look.

    Args:
        program: of the step.
        iterator: of its batches.
        tries: True to look at losses of `compile`, and at layers, that may look across rows.
        sums: True to look whether losses of a training step are sums.
    """
    model, binding = program.model, program.binding
    if not tries and not sums:
        return iterator
    found = None
    if binding.communicator.rank == 0:
        has_type = isinstance(iterator, tf.data.Iterator)
        if sums or (tries and (unknown_losses(model) or not has_type)):
            batch, iterator = peek(iterator, model.steps_per_execution)
        else:
            batch = made_up(iterator.element_spec) if tries else None
        found = [kinds_of(program, batch) if tries else [], sums and sums_up(program, batch)]
    unknown = unknown_losses(model) if tries else []
    if sums or unknown:  # rank 0 alone warns of layers
        kinds, is_sum = binding.communicator.all_gather_object(found, "kp.losses")[0]
        binding.kinds_of_losses |= dict(zip(map(id, unknown), kinds, strict=True))
        binding.sums_losses |= is_sum
    return iterator


def sums_up(program: Program, batch: Any) -> bool:
    """True if the losses of a training step are sums over rows.

    Warns:
        if they are not what they are taken for.
    """
    model, options = program.model, program.binding.options
    if batch is None:
        return False
    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    if not all(isinstance(leaf, (tf.Tensor, np.ndarray)) for leaf in leaves):
        return False
    states = random.getstate(), np.random.get_state()
    try:
        losses = losses_seen(program, batch, [tf.convert_to_tensor(leaf) for leaf in leaves])
    except Exception as error:  # a step that cannot be traced once more is used as it is
        logger.debug("keras-par: the losses of '%s' were not looked at: %r", model.name, error)
        return False
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    taken_for = "sum" if options.custom_loss == "sum" else "mean"
    wrong = [loss for loss in losses if loss.kind not in (None, taken_for)]
    if not wrong:
        return False
    kinds = {loss.kind for loss in losses if loss.kind is not None}
    if options.custom_loss == "auto" and kinds == {"sum"}:
        program.binding.say("a loss that is a sum is summed over ranks: %s", described(program, wrong[0]))
        odd = [loss for loss in seen_as_sums(program, batch, leaves) if loss.kind not in (None, "sum")]
        if odd:
            warnings.warn(message(program, odd[0]._replace(kind="neither"), kinds), stacklevel=2)
        return True
    warnings.warn(message(program, wrong[0], kinds), stacklevel=2)
    return False


def seen_as_sums(program: Program, batch: Any, leaves: list) -> list[Seen]:
    """As `losses_seen`, of a step whose scalars are taken for sums, of which Keras's losses give their share."""
    binding = program.binding
    binding.sums_losses = True
    try:
        return losses_seen(program, batch, [tf.convert_to_tensor(leaf) for leaf in leaves])
    finally:
        binding.sums_losses = False


def may_sum_up(program: Program) -> bool:
    """True if losses of a training step may be sums over rows, and can be looked at on one rank."""
    model = program.model
    if program.method != "train_step" or isinstance(program, Split) or sharded(model.variables):
        return False
    return not program.is_stock or may_add_losses(model)


def may_add_losses(model: keras.Model) -> bool:
    """True if a layer has an activity regularizer, or code that speaks of `add_loss`."""
    return any(layer.activity_regularizer is not None or mentions(type(layer), "add_loss") for layer in layers(model))


def mentions(kind: type, name: str) -> bool:
    """True if a class, or one that it inherits from and that is not of Keras's, uses this name in a function."""
    own = [each for each in kind.__mro__ if not each.__module__.startswith("keras.src.")]
    functions = [getattr(value, "__code__", None) for each in own for value in vars(each).values()]
    return any(code is not None and name in code.co_names for code in functions)


def losses_seen(program: Program, batch: Any, leaves: list[tf.Tensor]) -> list[Seen]:
    """The scalar losses of two halves of rank 0's rows, and of both."""
    given = int(num_rows(as_tensor(counting_part(batch))))
    half = given // 2
    if half == 0:
        return []
    alone = LoneCommunicator()
    evaluate, is_exact = losses_of(program, batch, leaves, given, alone)
    if alone.asked_by_ops:  # a loss that takes other ranks' rows is made for ranks
        return []
    whole = evaluate(some_rows(leaves, given, 0, 2 * half), 2 * half, 2 * half)
    parts = [evaluate(some_rows(leaves, given, i * half, (i + 1) * half), half, 2 * half) for i in range(2)]
    tolerance = CLOSE if is_exact else NEAR
    found = [Seen(of_all, a, b, judged(of_all, a, b, tolerance)) for of_all, a, b in zip(whole, *parts, strict=True)]
    if is_exact:
        return found
    # Near to a sum may be chance, which other halves, of every other row, hardly repeat.
    parts = [evaluate(every_other(leaves, given, i, 2 * half), half, 2 * half) for i in range(2)]
    again = [judged(of_all, a, b, tolerance) for of_all, a, b in zip(whole, *parts, strict=True)]
    return [loss for loss, kind in zip(found, again, strict=True) if loss.kind == kind != "neither"]


def every_other(leaves: list[tf.Tensor], given: int, start: int, stop: int) -> list[tf.Tensor]:
    """Rows `start`, `start + 2` and so on of tensors of `given` rows, up to row `stop`; others are left whole."""
    rows = tf.range(start, stop, 2)
    return [tf.gather(leaf, rows) if leaf.shape.rank and leaf.shape[0] == given else leaf for leaf in leaves]


def losses_of(program: Program, batch, leaves: list[tf.Tensor], given: int, alone: LoneCommunicator):
    """A function of leaves of a batch, rows and all rows that gives the step's scalar losses, and if they are exact."""
    binding = program.binding
    structure = keras.tree.map_structure(lambda leaf: None if leaf is None else 0, batch)
    places = [i for i, leaf in enumerate(keras.tree.flatten(batch)) if leaf is not None]

    def trace(local, total, *leaves):
        losses: list[tf.Tensor] = []
        flat: list = [None] * len(keras.tree.flatten(structure))
        for place, leaf in zip(places, leaves, strict=True):
            flat[place] = leaf
        own = keras.tree.pack_sequence_as(structure, flat)
        step = Step(binding, local, total, thin=False, captured=[], probe=losses, communicator=alone)
        with binding.scope(), step.current():
            program.step_function(own)
        return [loss for loss in losses if loss.shape.rank == 0 and loss.dtype.is_floating]

    numbers = [tf.TensorSpec([], tf.int64)] * 2
    specs = [
        tf.TensorSpec([None, *leaf.shape[1:]] if leaf.shape.rank and leaf.shape[0] == given else leaf.shape, leaf.dtype)
        for leaf in leaves
    ]
    with functions.inlined():
        traced = tf.compat.v1.wrap_function(trace, [*numbers, *specs])
    pruned = traced.prune(traced.inputs[: len(numbers) + len(specs)], traced.outputs)
    operations = pruned.graph.get_operations()
    is_random = any(word in operation.type for operation in operations for word in RANDOM)
    # Of a loss that is made of gradients the ranks' parts are made of those of the whole batch.
    is_second_order = any(OF_BATCH in operation.name for operation in operations)
    normal = [layer for layer in layers(program.model) if isinstance(layer, keras.layers.BatchNormalization)]
    is_normalized = not all(is_synchronized(layer, binding.options) for layer in normal)

    def evaluate(leaves: list[tf.Tensor], *numbers: int) -> list[float]:
        results = pruned(*(tf.constant(number, tf.int64) for number in numbers), *leaves)
        return [float(result) for result in tf.nest.flatten(results)]

    return evaluate, not (is_random or is_normalized or is_second_order or alone.asked)


def judged(of_all: float, first: float, second: float, tolerance: float) -> str | None:
    """What a loss is: "mean", "sum", "neither", or None if it may be both."""
    scale = max(abs(of_all), abs(first), abs(second))
    found = {"mean": (first + second) / 2, "sum": first + second}
    fits = [kind for kind, value in found.items() if abs(of_all - value) <= tolerance * scale]
    # A hinge is often 0 on a half, so that with random numbers its mean may come near to a sum.
    is_unclear = tolerance == NEAR and min(abs(first), abs(second)) < 0.1 * scale
    if not np.isfinite(scale) or scale == 0 or len(fits) > 1 or is_unclear:
        return None
    return fits[0] if fits else "neither"


def described(program: Program, loss: Seen) -> str:
    of_halves = f"{loss.first:.6g} and {loss.second:.6g} for their halves"
    kind = "neither a mean nor a sum" if loss.kind == "neither" else f"a {loss.kind}"
    return (
        f"a loss in {program.method} of '{program.model.name}' is {kind} over rows (it is {loss.of_all:.6g} for some "
        f"rows, {of_halves})"
    )


def message(program: Program, loss: Seen, kinds: set) -> str:
    """What to do about a loss that is not what it is taken for; `kinds` are those of all losses of the step."""
    seen = described(program, loss)
    if loss.kind == "neither":
        return (
            f"keras-par: {seen}, so that ranks, which see their own rows, train on another one: bring rows together by "
            "kp.ops.all_gather, sums by kp.ops.all_reduce."
        )
    if {"mean", "sum"} <= kinds:
        return f"keras-par: {seen}, and others are not, so that no custom_loss fits: make all of them means."
    other = "mean" if loss.kind == "sum" else "sum"
    return f'keras-par: {seen}, and is taken for a {other}: give the strategy custom_loss="{loss.kind}".'
