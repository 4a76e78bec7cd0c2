"""Keeps what is gathered and scattered in a graph near the layer under way, so that few of these are in memory at once.

Without, TensorFlow would gather all weights as soon as a step begins, and would go back through all layers before it
makes the first gradient of a weight.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_par.sharding.collectives import differentiable

ATTRIBUTE = "_keras_par_window"
LAYERS = 2  # of which weights may be in memory at once


class Window:
    """What has been traced of a graph."""

    def __init__(self):
        self._outputs: list[tf.Tensor] = []  # of the operations that gathered, in their order
        self._scattered: list[tf.Tensor] = []  # shards of gradients, in their order
        self.reads: dict[int, int] = {}  # how often a variable was read, by its `id`

    def before_gather(self) -> list[tf.Tensor]:
        """What must be there before the next weights are gathered: what the operation before the last gives."""
        return self._outputs[-LAYERS:][:1] if len(self._outputs) >= LAYERS else []

    def used(self, output: tf.Tensor) -> None:
        """Notes what an operation with gathered weights gives."""
        self._outputs.append(output)

    def before_going_back(self) -> list[tf.Tensor]:
        """What must be there before the backward pass goes on to the layer before: the newest shard of a gradient.

        Ranks then come to each reduce-scatter at about the same time. Free to compute ahead, they do that in orders of
        their own, and wait for each other: for 28 ms of a step of 190 ms of a GPT.
        """
        return self._scattered[-1:]

    def scattered(self, shard: tf.Tensor) -> None:
        """Notes a shard of a gradient."""
        self._scattered.append(shard)


def current() -> Window:
    """That of the graph being traced."""
    graph: Any = tf.compat.v1.get_default_graph()
    if not hasattr(graph, ATTRIBUTE):
        setattr(graph, ATTRIBUTE, Window())
    return getattr(graph, ATTRIBUTE)


def after(tensor: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
    """The tensor, once the others are there, too."""
    with tf.control_dependencies(others):
        return tf.identity(tensor)


def gate(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, whose gradient waits as the window says."""
    return differentiable(tf.identity, lambda upstream: after(upstream, current().before_going_back()), tensor)
