"""Looks once, before the first step, whether the scalars of a model's steps are what its strategy takes them for.

A mean over rows counts with a rank's share of them, a sum adds up, and nobody says which one a loss, or a number that a
step shows, is. So rank 0 cuts its rows of a batch in two, and compares the scalars of both halves with those of all.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_par.keras_patches.coordination.metric_probe import own_metrics
from keras_par.keras_patches.step.metrics import layers
from keras_par.keras_patches.step.number_kinds import Key, keys_of_metrics, leaves
from keras_par.keras_patches.trainer.first_batch import made_up, peek
from keras_par.keras_patches.trainer.half_batches import Seen, scalars_of
from keras_par.keras_patches.trainer.python_state import PythonState
from keras_par.keras_patches.trainer.row_probe import kinds_of, may_mix_rows, unknown_losses
from keras_par.keras_patches.trainer.step_program import Program, Split
from keras_par.plan.options import Reduction
from keras_par.sharding.variable_views import sharded


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
    tries = is_first and (may_mix_rows(model) or bool(unknown_losses(model)))
    is_traced = not model.run_eagerly and not tf.config.functions_run_eagerly()
    sums = may_sum_up(program) and (is_traced or program.method == "train_step")  # others may keep what they compute
    is_mean = binding.custom_loss == "mean"  # where sums are known to be taken, constants still are none
    program.is_first_trace = sums and is_traced and is_mean and isinstance(iterator, tf.data.Iterator)
    return looked_at(program, iterator, tries, sums and not program.is_first_trace)


def look_at_losses(program: Program, iterator) -> Iterator:
    """As `look`, at scalars that the first trace of the step did not know."""
    return looked_at(program, iterator, False, True)


def looked_at(program: Program, iterator, tries: bool, sums: bool) -> Iterator:
    """An iterator of the same batches, after a look.

    Args:
        program: of the step.
        iterator: of its batches.
        tries: True to look at losses of `compile`, and at layers, that may look across rows.
        sums: True to look whether the step's scalars are sums.
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
        is_sum, numbers = found_in(program, batch) if sums else (False, None)
        found = [kinds_of(program, batch) if tries else [], is_sum, None if numbers is None else list(numbers.items())]
    unknown = unknown_losses(model) if tries else []
    if sums or unknown:  # rank 0 alone warns of layers
        kinds, is_sum, pairs = binding.communicator.all_gather_object(found, "kp.losses")[0]
        binding.kinds_of_losses |= dict(zip(map(id, unknown), kinds, strict=True))
        if is_sum and not binding.sums_losses:  # a test step that was traced takes means
            binding.probed.discard("test_step")
            model.test_function = None
        binding.sums_losses |= is_sum
        if pairs is not None:
            binding.numbers.note(program.method, {tuple(key): kind for key, kind in pairs})
    return iterator


def found_in(program: Program, batch: Any) -> tuple[bool, dict[Key, Reduction] | None]:
    """If the losses of a training step are sums over rows, and what the numbers are that a step keeps or returns.

    None for numbers that could not be looked at.

    Warns:
        if losses are not what they are taken for, or a number is neither a mean nor a sum.
    """
    model, binding = program.model, program.binding
    before = PythonState(model)
    try:
        seen = scalars_of(program, batch)
        if seen is None:
            return False, None
        losses = [each for each in seen if each.key is None]
        is_sum = program.method == "train_step" and are_sums(program, losses)
        if is_sum and not binding.sums_losses:
            seen = seen_as_sums(program, batch)
    except Exception as error:  # a step that cannot be traced once more is used as it is
        binding.say(
            "whether the losses and logs of %s of '%s' are means or sums over rows was not found out (%s: %s), so that "
            "they are taken for %ss: the strategy's custom_loss says what losses are",
            program.method,
            model.name,
            type(error).__name__,
            str(error).partition("\n")[0],
            binding.custom_loss,
        )
        return False, None
    finally:
        before.put_back()
    kinds: dict[Key, set] = {}
    for number in seen:
        if number.key is not None and number.kind is not None:
            kinds.setdefault(number.key, set()).add(number.kind)
    if not any(loss.kind == "neither" for loss in losses):
        warn_of_odd(program, [key for key, found in kinds.items() if len(found) > 1 or "neither" in found])
    return is_sum, {key: found.pop() for key, found in kinds.items() if found in ({"mean"}, {"sum"})}


def warn_of_odd(program: Program, keys: list[Key]) -> None:
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


def are_sums(program: Program, losses: list[Seen]) -> bool:
    """True if losses are found to be sums over rows, and the strategy leaves that open.

    Warns:
        if they are not what they are taken for.
    """
    options = program.binding.options
    taken_for = "sum" if options.custom_loss == "sum" else "mean"
    wrong = [loss for loss in losses if loss.kind not in (None, taken_for)]
    if not wrong:
        return False
    kinds = {loss.kind for loss in losses if loss.kind is not None}
    if options.custom_loss == "auto" and kinds == {"sum"}:
        program.binding.say("a loss that is a sum is summed over ranks: %s", described(program, wrong[0]))
        return True
    warnings.warn(message(program, wrong[0], kinds), stacklevel=2)
    return False


def seen_as_sums(program: Program, batch: Any) -> list[Seen]:
    """The scalars of a step whose losses are sums, of which Keras's losses give their share.

    Warns:
        if a loss is not a sum then, as a product of Keras's mean and a number of rows.
    """
    binding = program.binding
    binding.sums_losses = True
    try:
        seen = scalars_of(program, batch) or []
    finally:
        binding.sums_losses = False
    odd = [each for each in seen if each.key is None and each.kind not in (None, "sum")]
    if odd:
        warnings.warn(message(program, odd[0]._replace(kind="neither"), {"sum"}), stacklevel=2)
    return seen


def may_sum_up(program: Program) -> bool:
    """True if scalars of a step may be sums over rows, and can be looked at on one rank."""
    model = program.model
    if isinstance(program, Split) or sharded(model.variables):
        return False
    return not program.is_stock or (program.method == "train_step" and may_add_losses(model))


def may_add_losses(model: keras.Model) -> bool:
    """True if a layer has an activity regularizer, or code that speaks of `add_loss`."""
    return any(layer.activity_regularizer is not None or mentions(type(layer), "add_loss") for layer in layers(model))


def mentions(kind: type, name: str) -> bool:
    """True if a class, or one that it inherits from and that is not of Keras's, uses this name in a function."""
    own = [each for each in kind.__mro__ if not each.__module__.startswith("keras.src.")]
    functions = [getattr(value, "__code__", None) for each in own for value in vars(each).values()]
    return any(code is not None and name in code.co_names for code in functions)


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
