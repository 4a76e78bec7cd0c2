"""Probes once, before the first step, whether the scalars of a model's steps are what its strategy takes them for.

A mean over rows counts with a rank's share of them, a sum adds up, and nobody says which one a loss, or a number that a
step shows, is. So rank 0 cuts its rows of a batch in two, and compares the scalars of both halves with those of all.
"""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_par.keras_patches.coordination.metric_probe import own_metrics
from keras_par.keras_patches.inputs.components import counting_component, is_like
from keras_par.keras_patches.inputs.shards import KINDS, Batches
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.step.number_kinds import Key, keys_of_metrics, leaves
from keras_par.keras_patches.trainer.abandoned_trace import PythonState
from keras_par.keras_patches.trainer.row_probe import FEW, kinds_of, may_mix_rows, unknown_losses
from keras_par.keras_patches.trainer.scalar_graph import Found, Loss, scalars_of
from keras_par.keras_patches.trainer.step_program import Program, Split
from keras_par.sharding.variable_views import sharded

NONE = type(tf.type_spec_from_value(None))
FEEDABLE = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec, NONE)


def probe_first_batch(program: Program, iterator) -> Iterator:
    """An iterator of the same batches, after a probe of the first one.

    Rank 0 probes, and tells the others what it has found. Where there is nothing to find, no rank does. Losses are left
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
    rows = is_first and (may_mix_rows(model) or bool(unknown_losses(model)))
    is_traced = not model.run_eagerly and not tf.config.functions_run_eagerly()
    scalars = may_sum_up(program) and (is_traced or program.method == "train_step")  # others may keep what they compute
    is_mean = binding.custom_loss == "mean"  # where sums are known to be taken, constants still are none
    program.is_first_trace = scalars and is_traced and is_mean and isinstance(iterator, tf.data.Iterator)
    return probe_batch(program, iterator, rows, scalars and not program.is_first_trace)


def probe_batch(program: Program, iterator, rows: bool, scalars: bool) -> Iterator:
    """An iterator of the same batches, after a probe.

    Args:
        program: of the step.
        iterator: of its batches.
        rows: True to probe losses of `compile`, and layers, that may look across rows.
        scalars: True to probe whether the step's scalars are sums.
    """
    model, binding = program.model, program.binding
    if not rows and not scalars:
        return iterator
    found = None
    if binding.communicator.rank == 0:
        if scalars or unknown_losses(model) or not isinstance(iterator, tf.data.Iterator):
            batch, iterator = peek(iterator, model.steps_per_execution)
        else:
            batch = made_up(iterator.element_spec)
        is_sum, numbers = found_in(program, batch) if scalars else (False, None)
        found = [kinds_of(program, batch) if rows else [], is_sum, None if numbers is None else list(numbers.items())]
    unknown = unknown_losses(model) if rows else []
    if scalars or unknown:  # rank 0 alone warns of layers
        kinds, is_sum, pairs = binding.communicator.all_gather_object(found, "kp.losses")[0]
        binding.kinds_of_losses |= dict(zip(map(id, unknown), kinds, strict=True))
        if is_sum and not binding.sums_losses:  # a test step that was traced takes means
            binding.probed.discard("test_step")
            model.test_function = None
        binding.sums_losses |= is_sum
        if pairs is not None:
            binding.numbers[program.method] = {tuple(key): kind for key, kind in pairs}
    return iterator


def found_in(program: Program, batch: Any) -> tuple[bool, dict[Key, Found] | None]:
    """If the losses of a training step are sums over rows, and what the numbers are that a step keeps or returns.

    None for numbers that could not be looked at.

    Warns:
        if losses are not what they are taken for, or a number is neither a mean nor a sum.
    """
    model, binding = program.model, program.binding
    before, sums_losses, taken_for = PythonState(model), binding.sums_losses, binding.custom_loss
    try:
        found = scalars_of(program, batch)
        if found is None:
            return False, None
        losses, is_training = found[0], program.method == "train_step"
        kinds = {loss.kind for loss in losses if loss.kind is not None}
        is_sum = is_training and binding.options.custom_loss == "auto" and kinds == {"sum"}
        if is_sum and not sums_losses:
            wrong = next(loss for loss in losses if loss.kind == "sum")
            binding.say("a loss that is a sum is summed over ranks: %s", described(program, wrong))
            binding.sums_losses = True  # of which Keras's losses give their share
            found = scalars_of(program, batch) or ([], {})
            losses = [each._replace(kind="neither") if each.kind == "mean" else each for each in found[0]]
        if is_training:
            warn_of_losses(program, losses, kinds)
    except Exception as error:  # a step that cannot be traced once more is used as it is
        binding.say(
            "whether the losses and logs of %s of '%s' are means or sums over rows was not found out (%s: %s), so that "
            "they are taken for %ss: the strategy's custom_loss says what losses are",
            program.method,
            model.name,
            type(error).__name__,
            str(error).partition("\n")[0],
            taken_for,
        )
        return False, None
    finally:
        before.put_back()
        binding.sums_losses = sums_losses
    if "neither" not in kinds:
        warn_of_numbers(program, [key for key, kind in found[1].items() if kind == "neither"])
    return is_sum, {key: kind for key, kind in found[1].items() if kind != "neither"}


def warn_of_losses(program: Program, losses: list[Loss], kinds: set) -> None:
    """Warns of the first loss that is not what it is taken for, of a step whose losses are of some `kinds`."""
    taken_for = program.binding.custom_loss
    wrong = next((loss for loss in losses if loss.kind not in (None, taken_for)), None)
    if wrong is None:
        return
    if wrong.kind == "neither":
        advice = (
            ", so that ranks, which see their own rows, train on another one: bring rows together by "
            "kp.ops.all_gather, sums by kp.ops.all_reduce."
        )
    elif {"mean", "sum"} <= kinds:
        advice = ", and others are not, so that no custom_loss fits: make all of them means."
    else:
        advice = f', and is taken for a {taken_for}: give the strategy custom_loss="{wrong.kind}".'
    warnings.warn(f"keras-par: {described(program, wrong)}{advice}", stacklevel=2)


def described(program: Program, loss: Loss) -> str:
    kind = "neither a mean nor a sum" if loss.kind == "neither" else f"a {loss.kind}"
    return (
        f"a loss in {program.method} of '{program.model.name}' is {kind} over rows (it is {loss.of_all:.6g} for some "
        f"rows, {loss.first:.6g} and {loss.second:.6g} for their halves)"
    )


def warn_of_numbers(program: Program, keys: list[Key]) -> None:
    """Warns of numbers that are neither means nor sums; the probe of metrics tells of those that are not Keras's."""
    own = set(map(id, own_metrics(program.model)))
    known = keys_of_metrics(program.model)
    metrics = {known[id(metric)]: metric for metric in leaves(program.model.metrics)}
    told = {
        repr(metrics[key].name if key in metrics else " ".join(key[1:]))
        for key in keys
        if id(metrics.get(key)) not in own
    }
    if told:
        warnings.warn(
            f"keras-par: what {program.method} of '{program.model.name}' keeps or returns as "
            f"{', '.join(sorted(told))} is neither a mean nor a sum over rows, so that the numbers of ranks, which see "
            "their own rows, are averaged: keep sums over rows in a metric, and let its result() make of them what it "
            "shows.",
            stacklevel=2,
        )


def may_sum_up(program: Program) -> bool:
    """True if scalars of a step may be sums over rows, and can be looked at on one rank."""
    model = program.model
    if isinstance(program, Split) or sharded(model.variables):
        return False
    return not program.is_stock or (
        program.method == "train_step"
        and any(each.activity_regularizer is not None or mentions(type(each), "add_loss") for each in layers(model))
    )


def mentions(kind: type, name: str) -> bool:
    """True if a class, or one that it inherits from and that is not of Keras's, uses this name in a function."""
    own = [each for each in kind.__mro__ if not each.__module__.startswith("keras.src.")]
    functions = [getattr(value, "__code__", None) for each in own for value in vars(each).values()]
    return any(code is not None and name in code.co_names for code in functions)


def peek(iterator: Any, num_steps: int) -> tuple[Any, Any]:
    """A rank's rows of the first batch, None if there is none or it cannot be looked at, and an iterator of the same.

    Args:
        iterator: of batches, or of shards of them, for one call of a function that Keras makes.
        num_steps: batches that the function reads in one call.
    """
    if isinstance(iterator, Batches):
        return rows_of(iterator.shards), iterator
    if not isinstance(iterator, tf.data.Iterator):
        batches = list(itertools.islice(iterator, num_steps))
        return rows_of(batches), itertools.chain(batches, iterator)
    spec = iterator.element_spec
    if not all(isinstance(leaf, FEEDABLE) for leaf in tf.nest.flatten(spec)):
        return None, iterator
    batches = list(itertools.islice(iterator, num_steps))
    fed = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    options = tf.data.Options()
    options.autotune.enabled = False  # for whose thread the deletion of the iterator would wait
    return rows_of(batches), iter(fed.with_options(options))


def made_up(spec: Any) -> Any:
    """A batch of a type, of random numbers; None if the type leaves open more than the number of rows, or is no number.

    To look at a batch of data, and to give it back, takes some 30 ms, this takes less than one.
    """
    batch = spec.batch if isinstance(spec, KINDS) else spec
    first, random = counting_component(batch), np.random.default_rng(0)

    def drawn(leaf: Any) -> tf.Tensor | None:
        if leaf is None or isinstance(leaf, NONE):
            return None
        if not isinstance(leaf, tf.TensorSpec):
            raise TypeError
        sizes: list = list(leaf.shape)
        if is_like(leaf, first):
            sizes[0] = FEW
        numbers = random.normal(size=sizes) if leaf.dtype.is_floating else random.integers(0, 2, sizes)
        return tf.constant(numbers, leaf.dtype)

    try:
        return keras.tree.map_structure(drawn, batch)
    except (TypeError, ValueError):
        return None


def rows_of(batches: list) -> Any:
    first = batches[0] if batches else None
    return first.batch if isinstance(first, KINDS) else first
