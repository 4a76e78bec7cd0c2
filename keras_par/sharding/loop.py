"""A loop of a graph in which ranks talk: one turn after the other, and as many turns on each rank.

Names of collectives are in flight once, so that no turn may begin before the one before has ended. TensorFlow runs
turns side by side unless it is told not to. Text that is generated is such a loop: a turn for each token.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.sharding.collective_names import num_named, numbered
from keras_par.sharding.tensor import whole


def while_loop(
    original: Callable, group: Communicator, cond: Callable, body: Callable, loop_vars: Any, maximum_iterations=None
) -> Any:
    """As Keras's `while_loop`, where `body` may use sharded tensors; what goes round the loop is whole.

    A rank that has ended takes part in the turns of the others, which change nothing here. Costs one all-reduce of a
    number before the loop and in each turn, besides the body's. If the body has no collectives it costs none, and is
    traced a second time, as Keras does it.

    Args:
        original: Keras's, for a body that has none.
        group: the ranks that talk.
        cond: of the loop's variables: true where there is another turn.
        body: of the loop's variables: what they are after a turn, of the same shapes.
        loop_vars: one tensor, or a list or tuple.
        maximum_iterations: of turns, None for any number.
    """
    is_one = not isinstance(loop_vars, (tuple, list))
    values = tree.map_structure(lambda each: tf.convert_to_tensor(whole(each)), (loop_vars,) if is_one else loop_vars)
    values = tuple(values)

    def goes_on(turn, values):
        more = tf.reshape(tf.cast(cond(*values), tf.bool), [])
        return more if maximum_iterations is None else more & (turn < tf.cast(maximum_iterations, turn.dtype))

    def next_turn(turn, *values):
        made = body(*values)
        made = tree.map_structure(lambda each: tf.convert_to_tensor(whole(each)), (made,) if is_one else tuple(made))
        return goes_on(turn + 1, made), made

    before = num_named()
    traced = tf.function(next_turn, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32), *tree.map_structure(tf.type_spec_from_value, values)
    )
    if num_named() == before:
        return original(cond, body, values[0] if is_one else values, maximum_iterations)
    name = numbered("loop")

    def anywhere(is_here):
        return group.all_reduce([tf.cast(is_here, tf.int32)], name, "max")[0] > 0

    def one_turn(turn, is_here, _, values):
        given = chosen(is_here, values, first)  # after its end a rank takes its first turn over and over
        is_next, made = traced(turn, *tree.flatten(given))
        is_next = is_here & is_next
        kept = chosen(is_here, tree.pack_sequence_as(values, tree.flatten(made)), values)
        return turn + 1, is_next, anywhere(is_next), kept

    first, begin = values, goes_on(tf.constant(0), values)
    state = (tf.constant(0), begin, anywhere(begin), values)
    *_, values = tf.while_loop(lambda turn, here, there, values: there, one_turn, state, parallel_iterations=1)
    return values[0] if is_one else values


def chosen(condition: tf.Tensor, values: tuple, others: tuple) -> tuple:
    """`values` if the condition is true, else the others."""
    return tree.map_structure(lambda one, other: tf.cond(condition, lambda: one, lambda: other), values, others)
