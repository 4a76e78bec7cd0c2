"""Names for collectives that are the same on every rank: numbered in the order in which a graph is traced."""

import itertools
import weakref
from collections import defaultdict

import tensorflow as tf

# The names of TensorFlow's private classes of graphs that run many times, whose runs could overlap.
LOOPS = ("WhileBodyFuncGraph", "WhileCondFuncGraph")

_numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # graph -> kind -> iterator of numbers


def unique(kind: str) -> str:
    """The next name for a collective of this kind in the graph being traced; eagerly, where one follows another, one.

    Graphs inside others, as branches and loop bodies are, count with the outermost, beside which they run.
    """
    if tf.executing_eagerly():
        return f"kp.{kind}"
    graph = tf.compat.v1.get_default_graph()
    while True:
        if type(graph).__name__ in LOOPS:
            raise ValueError(
                "keras-par: a sharded tensor is used within a loop, where ranks cannot talk: make it whole before "
                "the loop by tf.convert_to_tensor(tensor)."
            )
        if not hasattr(getattr(graph, "outer_graph", None), "outer_graph"):
            break
        graph = graph.outer_graph
    numbers = _numbers.setdefault(graph, defaultdict(itertools.count))
    return f"kp.{kind}.{next(numbers[kind])}"
