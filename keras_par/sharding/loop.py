"""A loop of a graph in which ranks talk: one turn after the other, and as many turns on each rank.

Names of collectives are in flight once, so that no turn may begin before the one before has ended. TensorFlow runs
turns side by side unless it is told not to. Text that is generated is such a loop: a turn for each token.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.sharding.collective_names import num_named, numbered
from keras_par.sharding.tensor import ShardedTensor, whole


def while_loop(
    original: Callable, group: Communicator, cond: Callable, body: Callable, loop_vars: Any, maximum_iterations=None
) -> Any:
    """As Keras's `while_loop`, where `body` may use sharded tensors.

    What is sharded at the begin goes round the loop so, as a cache of keys and values that is divided by heads; the
    rest is whole. A rank that has ended takes part in the turns of the others, which change nothing here. Costs one
    all-reduce of a number before the loop and in each turn, besides the body's. If the body has no collectives it costs
    none, and is traced a second time, as Keras does it.

    Args:
        original: Keras's, for a body that has none.
        group: the ranks that talk.
        cond: of the loop's variables: true where there is another turn.
        body: of the loop's variables: what they are after a turn, of the same shapes.
        loop_vars: one tensor, or a list or tuple.
        maximum_iterations: of turns, None for any number.
    """
    if not isinstance(loop_vars, (tuple, list)):
        [found] = while_loop(original, group, cond, lambda each: (body(each),), (loop_vars,), maximum_iterations)
        return found
    state = State(tuple(loop_vars))
    values = state.tensors(tuple(loop_vars))

    def has_turn(*values):
        return cond(*state.values(values))

    def turned(*values):
        return state.tensors(tuple(body(*state.values(values))))

    def goes_on(turn, values):
        more = tf.reshape(tf.cast(has_turn(*values), tf.bool), [])
        return more if maximum_iterations is None else more & (turn < tf.cast(maximum_iterations, turn.dtype))

    def next_turn(turn, *values):
        made = turned(*values)
        return goes_on(turn + 1, made), made

    before = num_named()
    traced = tf.function(next_turn, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.int32), *map(tf.type_spec_from_value, values)
    )
    if num_named() == before:
        return state.values(original(has_turn, turned, values, maximum_iterations))
    name = numbered("loop")

    def anywhere(is_here):
        return group.all_reduce([tf.cast(is_here, tf.int32)], name, "max")[0] > 0

    def one_turn(turn, is_here, _, values):
        given = chosen(is_here, values, first)  # after its end a rank takes its first turn over and over
        is_next, made = traced(turn, *given)
        is_next = is_here & is_next
        return turn + 1, is_next, anywhere(is_next), chosen(is_here, tuple(made), values)

    first, begin = values, goes_on(tf.constant(0), values)
    initial = (tf.constant(0), begin, anywhere(begin), values)
    *_, values = tf.while_loop(lambda turn, here, there, values: there, one_turn, initial, parallel_iterations=1)
    return state.values(values)


class State:
    """What goes round a loop, of which each rank may have shards.

    Args:
        initial: the loop's variables at its begin, which say what is divided and how.
    """

    def __init__(self, initial: tuple):
        self._initial = initial
        self._layouts = [each if type(each) is ShardedTensor else None for each in tree.flatten(initial)]

    def tensors(self, values: tuple) -> tuple[tf.Tensor, ...]:
        """This rank's of all values. Costs all-gathers of those that are divided in another way than at the begin."""
        return tuple(map(self._tensor, tree.flatten(values), self._layouts))

    def _tensor(self, value: Any, layout: ShardedTensor | None) -> tf.Tensor:
        if layout is None:
            return tf.convert_to_tensor(whole(value))
        if type(value) is ShardedTensor and value.axes == layout.axes:
            return value.local
        return tf.convert_to_tensor(whole(value))[layout.mesh.shard(layout.shape, layout.axes)]

    def values(self, tensors: Sequence[tf.Tensor]) -> tuple:
        """The loop's variables, whose shards these are."""
        flat = [
            each if layout is None else layout.with_local(each)
            for each, layout in zip(tensors, self._layouts, strict=True)
        ]
        return tree.pack_sequence_as(self._initial, flat)


def chosen(condition: tf.Tensor, values: tuple, others: tuple) -> tuple:
    """`values` if the condition is true, else the others."""
    return tree.map_structure(lambda one, other: tf.cond(condition, lambda: one, lambda: other), values, others)
