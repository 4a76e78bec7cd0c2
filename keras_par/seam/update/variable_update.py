"""Updates variables as they and their state lie: shards as shards, parts as parts, or wholes beside gathered state."""

from typing import Any

import keras
import tensorflow as tf
from keras import optimizers
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.plan.buckets import fill_buckets
from keras_par.seam.update import same_rows
from keras_par.seam.update.slots import slots_by_variable
from keras_par.sharding import step as steps
from keras_par.sharding.parts import BUCKET_BYTES, Part, buckets_of, bytes_of, has_own_part, join, parts_of
from keras_par.sharding.tensor import of_shards
from keras_par.sharding.views import is_local, is_sharded, local_view, made_whole, placement_of, sharded

# Optimizers whose update of an element depends on nothing but that element. Others see whole variables.
ELEMENTWISE = tuple(
    getattr(optimizers, name)
    for name in ["SGD", "RMSprop", "Adam", "AdamW", "Adadelta", "Adagrad", "Adamax", "Ftrl", "Nadam", "Lion"]
    if hasattr(optimizers, name)
)


def is_elementwise(optimizer: BaseOptimizer) -> bool:
    """True if its update of an element depends on nothing but that element."""
    return any(type(optimizer).update_step is kind.update_step for kind in ELEMENTWISE)


def apply_weight_decay(original):
    """Leaves variables of which this rank updates a part to `update_step`."""

    def replacement(self, variables):
        return original(self, [variable for variable in variables if not has_own_part(variable)])

    return replacement


def update_step(original):
    """Updates parts where a rank updates a part, and joins the ranks' parts. Costs one all-gather for each bucket.

    On GPUs, ranks that updated rows by slices then have the first rank's, see `same_rows`.
    """

    def replacement(self, grads, trainable_variables, learning_rate):
        pairs = [*zip(grads, trainable_variables, strict=True)]
        if not is_elementwise(self) and any(is_sharded(each) or has_whole_update(each) for each in trainable_variables):
            update_whole(self, pairs, learning_rate)
            return
        stored = [pair for pair in pairs if not has_own_part(pair[1])]
        update_stored(original, self, stored, learning_rate)
        same_rows.share(self, stored, is_elementwise(self))
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
    before: list[tf.Tensor] = []
    for bucket in fill_buckets([bytes_of(variable._value) for _, variable in pairs], [None] * len(pairs), BUCKET_BYTES):
        for gradient, variable in (pairs[place] for place in bucket):
            own = sharded(slots.get(id(variable), ())) if has_whole_update(variable) else []
            if is_sharded(variable):
                shards, axes = tf.convert_to_tensor(gradient), placement_of(variable).gradient
                gradient = of_shards(shards, axes, variable.mesh, variable._shape)
            with local_view(False), tf.control_dependencies(before), made_whole(own):
                optimizer.update_step(gradient, variable, learning_rate)
        before = [pairs[place][1]._value.read_value() for place in bucket]


def update_stored(original, optimizer: BaseOptimizer, pairs: list, learning_rate: Any) -> None:
    """Updates variables of which this rank updates all that it stores, in a step bucket by bucket.

    Else the temporaries of all updates would be in memory at once. Weights that are gathered on use have gradients that
    come one by one, and are updated as these come.
    """
    comes_by_itself = any(placement_of(variable).is_gathered_on_use for _, variable in pairs)
    if steps.current() is None or tf.executing_eagerly() or comes_by_itself:
        original(optimizer, [gradient for gradient, _ in pairs], [variable for _, variable in pairs], learning_rate)
        return
    before: list[int] = []
    values = [variable._value for _, variable in pairs]
    for bucket in fill_buckets([bytes_of(value) for value in values], [None] * len(values), BUCKET_BYTES):
        gradients, variables = zip(*(pairs[place] for place in bucket), strict=True)
        with tf.control_dependencies([values[place].read_value() for place in before]):
            original(optimizer, list(gradients), list(variables), learning_rate)
        before = bucket


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


def update_average(original):
    """Averages parts where a rank has a part of the average."""

    def replacement(self, trainable_variables):
        variables = [Part(each) if has_own_part(each) else each for each in trainable_variables]
        with local_view(is_local() and not any(map(has_whole_update, trainable_variables))):
            return original(self, variables if self.use_ema else trainable_variables)

    return replacement


def overwrite_with_average(original):
    """Shards get the averages of shards, and all ranks those of parts. Costs one all-gather for each of these."""

    def replacement(self, trainable_variables):
        if not any(map(has_whole_update, trainable_variables)):
            with local_view(), parts_of(trainable_variables) as variables:
                return original(self, variables)
        with local_view(False):
            for variable, average in zip(trainable_variables, self._model_variables_moving_average, strict=True):
                variable.assign(average.value)

    return replacement


def assign(original):
    """Assigns to sharded variables by themselves, by their method of the same name."""
    name = original.__name__

    def replacement(self, variable, value):
        if is_sharded(variable) and not is_local():
            return getattr(variable, name)(keras.ops.cast(value, variable.dtype))
        return original(self, variable, value)

    return replacement
