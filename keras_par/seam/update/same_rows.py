"""Gives all ranks rank 0's sums of slices, which a GPU adds up in another order, and with other bits, each time."""

import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer

from keras_par.seam.update.slots import is_accumulator, slots_by_variable
from keras_par.sharding import copies
from keras_par.sharding import step as steps
from keras_par.sharding.names import numbered
from keras_par.sharding.views import is_sharded


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
        ranks = step.communicator if is_sharded(variable) else step.binding.communicator
        rows, _ = tf.unique(slices.indices)
        held = [each._value for each in (variable, *slots.get(id(variable), ()))]
        firsts = ranks.broadcast([tf.gather(each, rows) for each in held], numbered("rows"))
        for each, first in zip(held, firsts, strict=True):
            each.scatter_update(tf.IndexedSlices(first, rows))
