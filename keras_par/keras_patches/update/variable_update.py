"""Updates variables as they and their state lie: shards as shards, parts as parts, or wholes beside gathered state."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import optimizers
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.keras_patches.update import deterministic_slices
from keras_par.keras_patches.update.optimizer_slots import slots_by_variable
from keras_par.plan.buckets import fill_buckets
from keras_par.plan.placement import WHOLE
from keras_par.sharding import step as steps
from keras_par.sharding.tensor import of_shards
from keras_par.sharding.variable_views import is_sharded, local_view, made_whole, placement_of, sharded
from keras_par.sharding.zero_parts import BUCKET_BYTES, Part, buckets_of, bytes_of, has_own_part, join

# Optimizers whose update of an element depends on nothing but that element. Others see whole variables.
ELEMENTWISE = ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Ftrl", "Nadam", "Lion"]
ASSIGNING = ("assign", "assign_add", "assign_sub")


def is_elementwise(optimizer: BaseOptimizer) -> bool:
    """True if its update of an element depends on nothing but that element."""
    return any(type(optimizer).update_step is getattr(optimizers, name).update_step for name in ELEMENTWISE)


def update_step(original):
    """Updates parts where a rank updates a part, and joins the ranks' parts. Costs one all-gather for each bucket.

    On GPUs, ranks that updated rows by slices then have the first rank's, see `deterministic_slices`.
    """

    def replacement(self, grads, trainable_variables, learning_rate):
        pairs = [*zip(grads, trainable_variables, strict=True)]
        if not is_elementwise(self) and any(is_sharded(each) or has_whole_update(each) for each in trainable_variables):
            update_whole(self, pairs, learning_rate)
            return
        stored = [pair for pair in pairs if not has_own_part(pair[1])]
        update_stored(original, self, stored, learning_rate)
        deterministic_slices.share(self, stored, is_elementwise(self))
        update_parts(self, [pair for pair in pairs if has_own_part(pair[1])], learning_rate)

    return replacement


def has_whole_update(variable: Any) -> bool:
    """True for a variable that this rank updates as a whole, though ranks with other rows divide its state."""
    return placement_of(variable).divides_state and not has_own_part(variable)


def update_whole(optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates variables of an optimizer that looks beyond single elements: it sees whole ones, sharded as they are.

    State that ranks with other rows divide is whole while its variable is updated, of some variables at a time. Costs
    one all-gather for each slot of these.
    """
    slots = slots_by_variable(optimizer)
    for bucket in one_after_another(pairs):
        for gradient, variable in bucket:
            own = sharded(slots.get(id(variable), ())) if has_whole_update(variable) else []
            if is_sharded(variable):
                shards, axes = tf.convert_to_tensor(gradient), placement_of(variable).gradient
                gradient = of_shards(shards, axes, variable.mesh, variable._shape)
            with local_view(False), made_whole(own), assigning_whole(optimizer):
                optimizer.update_step(gradient, variable, learning_rate)


def one_after_another(pairs: list) -> Iterator[list]:
    """Buckets of gradients and variables: else the temporaries of all updates would be in memory at once."""
    before: list = []
    for places in fill_buckets([bytes_of(variable._value) for _, variable in pairs], [None] * len(pairs), BUCKET_BYTES):
        bucket = [pairs[place] for place in places]
        with tf.control_dependencies([variable._value.read_value() for _, variable in before]):
            yield bucket
        before = bucket


def update_stored(original, optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates variables of which this rank updates all that it stores, in a step bucket by bucket.

    Weights that are gathered on use have gradients that come one by one, and are updated as these come.
    """
    come_by_themselves = any(placement_of(variable).is_gathered_on_use for _, variable in pairs)
    at_once = steps.current() is None or tf.executing_eagerly() or come_by_themselves
    for bucket in [pairs] if at_once else one_after_another(pairs):
        original(optimizer, [gradient for gradient, _ in bucket], [variable for _, variable in bucket], learning_rate)


def update_parts(optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates this rank's parts one after another, and joins them bucket by bucket.

    Else the temporaries of all updates, or all new values, would be in memory at once. Costs one all-gather for each
    bucket.
    """
    before: list = []
    for bucket in buckets_of([variable for _, variable in pairs]):
        parts = []
        for gradient, variable in (pairs[place] for place in bucket):
            with tf.control_dependencies([gradient, *before]):
                part = Part(variable)
                optimizer._apply_weight_decay([part])
                optimizer.update_step(gradient, part, learning_rate)
            parts.append(part)
            before = [part.value]
        before = join(parts)


def average(optimizer: BaseOptimizer) -> None:
    """Averages variables as Keras does, parts where this rank has a part of the average."""
    variables = optimizer._trainable_variables
    with local_view(not any(map(has_whole_update, variables))):
        parts = [Part(each) if has_own_part(each) else each for each in variables]
        optimizer._update_model_variables_moving_average(parts)
    if every := optimizer.ema_overwrite_frequency:
        is_due = (optimizer.iterations + 1) % every == 0
        overwrite = optimizer._overwrite_model_variables_with_average_value
        keras.ops.cond(is_due, lambda: overwrite(variables), lambda: None)


def overwrite_with_average(original):
    """Shards get the averages of shards, and all ranks those of parts. Costs one all-gather for each of these."""

    def replacement(self, trainable_variables):
        if all(placement_of(variable) == WHOLE for variable in trainable_variables):
            return original(self, trainable_variables)
        for variable, mean in zip(trainable_variables, self._model_variables_moving_average, strict=True):
            with local_view(not placement_of(variable).divides_state):
                variable.assign(mean.value)
        return None

    return replacement


@contextlib.contextmanager
def assigning_whole(optimizer: BaseOptimizer) -> Iterator[None]:
    """Within it an optimizer assigns to sharded variables by their own methods, which take what is whole."""

    def assign(name: str, variable: Any, value: Any) -> None:
        if is_sharded(variable):
            getattr(variable, name)(keras.ops.cast(value, variable.dtype))
        else:
            getattr(type(optimizer), name)(optimizer, variable, value)

    vars(optimizer).update({name: functools.partial(assign, name) for name in ASSIGNING})
    try:
        yield
    finally:
        for name in ASSIGNING:
            del vars(optimizer)[name]
