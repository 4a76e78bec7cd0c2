"""Looks once, at the first training step, whether the losses of users' own are what the strategy takes them for.

A mean over rows counts with a rank's share of them, a sum adds up, and nobody says which one a scalar is. So rank 0
cuts its rows of a batch in two, and compares the loss of both halves with that of all. What a step changes is pruned
from the graph that does this, so that neither variables nor seeds move.
"""

import logging
import random
import warnings
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from keras_par.comm.solo import SoloCommunicator
from keras_par.seam.call.program import Program
from keras_par.seam.feed.shards import KINDS
from keras_par.seam.step.metrics import layers
from keras_par.seam.update.gradients import OF_BATCH
from keras_par.sharding.step import Step
from keras_par.sharding.views import sharded

CLOSE, NEAR = 1e-3, 0.15  # relative distances: without random numbers, and with them
RANDOM = ("Random", "Multinomial", "Bernoulli", "Gamma", "Poisson")

logger = logging.getLogger("keras_par")


class LoneCommunicator(SoloCommunicator):
    """One rank, which notes that it was asked for others."""

    asked = False

    def all_reduce(self, tensors, name, op="sum", sent_as=None):
        self.asked = True
        return super().all_reduce(tensors, name, op, sent_as)

    def all_gather(self, tensor, name):
        self.asked = True
        return super().all_gather(tensor, name)


def look(program: Program, iterator) -> Iterator:
    """An iterator of the same batches, after a look at the first one if there is something to look at.

    Warns:
        on rank 0, if a loss is a sum that is taken for a mean, a mean that is taken for a sum, or neither.
    """
    model, binding = program.model, program.binding
    is_due = not binding.probed and (not program.is_stock or binding.adds_losses)
    if not is_due or not isinstance(iterator, tf.data.Iterator):
        return iterator
    binding.probed = True
    leaves = tf.nest.flatten(iterator.element_spec)
    is_simple = model.steps_per_execution == 1 and not sharded(model.variables)
    if binding.communicator.rank != 0 or not is_simple or not all(type(leaf) is tf.TensorSpec for leaf in leaves):
        return iterator
    try:
        batch = iterator.get_next()
    except tf.errors.OutOfRangeError:
        return iterator  # which says so again
    states = random.getstate(), np.random.get_state()
    try:
        warn_of_others(program, batch)
    except Exception as error:  # a step that cannot be traced once more is used as it is
        logger.debug("keras-par: the losses of '%s' were not looked at: %r", model.name, error)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    spec = iterator.element_spec
    return iter(tf.data.Dataset.from_generator(lambda: iter([batch]), output_signature=spec))


def warn_of_others(program: Program, batch) -> None:
    """Compares the losses of two halves of rank 0's rows with those of both."""
    batch = batch.batch if isinstance(batch, KINDS) else batch
    leaves = [tf.convert_to_tensor(leaf) for leaf in keras.tree.flatten(batch)]
    half = leaves[0].shape[0] // 2
    if half == 0:
        return
    evaluate, is_exact = losses_of(program, batch, leaves)
    whole = evaluate([leaf[: 2 * half] for leaf in leaves], 2 * half, 2 * half)
    parts = [evaluate([leaf[i * half : (i + 1) * half] for leaf in leaves], half, 2 * half) for i in range(2)]
    tolerance = CLOSE if is_exact else NEAR
    for of_all, first, second in zip(whole, *parts, strict=True):
        said = judged(of_all, first, second, tolerance, program.binding.options.custom_loss)
        if said is not None and (is_exact or said != "neither"):
            warnings.warn(message(program, said, 2 * half, of_all, first, second), stacklevel=2)
            return


def losses_of(program: Program, batch, leaves: list[tf.Tensor]):
    """A function of leaves of a batch, rows and all rows that gives the step's scalar losses, and if they are exact."""
    alone, binding = LoneCommunicator(), program.binding

    def trace(local, total, *leaves):
        losses: list[tf.Tensor] = []
        step = Step(binding, local, total, thin=False, captured=[], probe=losses, communicator=alone)
        with binding.scope(), step.current():
            program.step_function(keras.tree.pack_sequence_as(batch, list(leaves)))
        return [loss for loss in losses if loss.shape.rank == 0 and loss.dtype.is_floating]

    numbers = [tf.TensorSpec([], tf.int64)] * 2
    specs = [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) for leaf in leaves]
    traced = tf.compat.v1.wrap_function(trace, [*numbers, *specs])
    pruned = traced.prune(traced.inputs[: len(numbers) + len(specs)], traced.outputs)
    kinds = {operation.type for operation in pruned.graph.get_operations()}
    is_random = any(word in kind for kind in kinds for word in RANDOM)
    # Of a loss that is made of gradients the ranks' parts are made of those of the whole batch.
    is_second_order = any(OF_BATCH in operation.name for operation in pruned.graph.get_operations())
    is_normalized = any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers(program.model))

    def evaluate(leaves: list[tf.Tensor], local: int, total: int) -> list[float]:
        results = pruned(tf.constant(local, tf.int64), tf.constant(total, tf.int64), *leaves)
        return [float(result) for result in tf.nest.flatten(results)]

    return evaluate, not (is_random or is_normalized or is_second_order or alone.asked)


def judged(of_all: float, first: float, second: float, tolerance: float, taken_for: str) -> str | None:
    """What a loss is if not what it is taken for: "mean", "sum" or "neither"."""
    scale = max(abs(of_all), abs(first), abs(second))
    found = {"mean": (first + second) / 2, "sum": first + second}
    fits = [kind for kind, value in found.items() if abs(of_all - value) <= tolerance * scale]
    # A hinge is often 0 on a half, so that with random numbers its mean may come near to a sum.
    is_unclear = tolerance == NEAR and min(abs(first), abs(second)) < 0.1 * scale
    if not np.isfinite(scale) or scale == 0 or taken_for in fits or is_unclear:
        return None
    return fits[0] if fits else "neither"


def message(program: Program, said: str, num_rows: int, of_all: float, first: float, second: float) -> str:
    where = f"{program.method} of '{program.model.name}'"
    seen = f"(it is {of_all:.6g} for {num_rows} rows, {first:.6g} and {second:.6g} for their halves)"
    if said == "neither":
        return (
            f"keras-par: a loss in {where} is neither a mean nor a sum over rows {seen}, so that ranks, which see "
            "their own rows, train on another one: bring rows together by kp.ops.all_gather, sums by kp.ops.all_reduce."
        )
    other = "mean" if said == "sum" else "sum"
    return (
        f"keras-par: a loss in {where} is a {said} over rows {seen}, and is taken for a {other}: give the strategy "
        f'custom_loss="{said}".'
    )
