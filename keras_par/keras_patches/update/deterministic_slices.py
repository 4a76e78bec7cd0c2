"""Gives all ranks rank 0's sums of slices, which a GPU adds up in another order, and with other bits, each time."""

from typing import Any

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.comm.communicator import Communicator
from keras_par.comm.reducer import Gradient, values_of, with_values
from keras_par.keras_patches.update.optimizer_slots import is_accumulator, slots_by_variable
from keras_par.sharding import copies
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import numbered
from keras_par.sharding.variable_views import identity, is_sharded, is_summed_backward
from keras_par.sharding.zero_parts import has_own_part


def share(optimizer: BaseOptimizer, pairs: list, elementwise: bool) -> None:
    """Sets what an update by slices has changed, of the variables and their slots, to what it is on the first rank.

    The slices are the same on all ranks, so that only the order differs in which rows that come up several times were
    added, as it does from one run of one process to the next on a GPU. Costs, in a step and where such sums have no
    order, one broadcast of the changed rows for each variable with slices and each of its slots; of an optimizer that
    is not `elementwise`, of these variables and of all that it keeps.

    Args:
        optimizer: that has updated.
        pairs: of a gradient and its variable.
        elementwise: its update of an element depends on nothing but that element, so that other rows are the same.
    """
    step = steps.current()
    pairs = [pair for pair in pairs if isinstance(pair[0], tf.IndexedSlices)]
    if step is None or not pairs or copies.repeats_bits():
        return
    if not elementwise:
        state = [each for each in optimizer.variables if not is_accumulator(each)]
        held = [each._value for each in (*(variable for _, variable in pairs), *state)]
        firsts = step.binding.communicator.broadcast([tf.identity(each) for each in held], numbered("rows"))
        for each, first in zip(held, firsts, strict=True):
            each.assign(first)
        return
    slots = slots_by_variable(optimizer)
    for slices, variable in pairs:
        if is_summed_backward(variable):
            continue
        rows, _ = tf.unique(slices.indices)
        held = [each._value for each in (variable, *slots.get(id(variable), ()))]
        firsts = holders(step, variable).broadcast([tf.gather(each, rows) for each in held], numbered("rows"))
        for each, first in zip(held, firsts, strict=True):
            each.scatter_update(tf.IndexedSlices(first, rows))


def added_up(slices: tf.IndexedSlices, variable: Any) -> tf.Tensor:
    """The dense gradient that slices, the same on all ranks, add up to: the first rank's, at `share`'s cost.

    Args:
        slices: a gradient.
        variable: that it is of.
    """
    dense, step = tf.convert_to_tensor(slices), steps.current()
    if step is None or copies.repeats_bits() or is_summed_backward(variable):
        return dense
    rows, _ = tf.unique(slices.indices)
    [firsts] = holders(step, variable).broadcast([tf.gather(dense, rows)], numbered("rows"))
    return tf.tensor_scatter_nd_update(dense, rows[:, tf.newaxis], firsts)


def of_own_step(step: steps.Step, gradients: list[Gradient], variables: list) -> list[Gradient]:
    """What a step of the user's own has made of summed gradients: the first rank's, if it may have added slices up.

    It may have made other gradients by that, as a clipping by their norm does, also those of another optimizer. Costs,
    where such sums have no order, one broadcast of all these gradients.
    """
    sliced = step.binding.sliced_at_tape
    if copies.repeats_bits() or not sliced:
        return gradients
    result = [
        added_up(gradient, variable) if isinstance(gradient, tf.IndexedSlices) and has_own_part(variable) else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    own = {identity(variable): gradient for variable, gradient in zip(variables, gradients, strict=True)}
    if all(isinstance(own.get(each), tf.IndexedSlices) for each in sliced):
        return result
    wholes = {identity(variable) for variable in variables if not is_sharded(variable)}
    for are_wholes in (True, False):  # shards are held by other ranks than wholes
        places = [
            place
            for place, variable in enumerate(variables)
            if result[place] is not None
            and (identity(variable) in wholes) == are_wholes
            and not is_summed_backward(variable)
        ]
        if places:
            values = [tf.convert_to_tensor(values_of(result[place])) for place in places]
            firsts = holders(step, variables[places[0]]).broadcast(values, numbered("own step"))
            for place, first in zip(places, firsts, strict=True):
                result[place] = with_values(result[place], first)
    return copies.of_first(step.binding.mesh, result, variables, but=wholes)


def holders(step: steps.Step, variable: Any) -> Communicator:
    """The ranks that hold the same of a variable as this one, those along the mesh's other axes left out."""
    return step.communicator if is_sharded(variable) else step.binding.communicator
