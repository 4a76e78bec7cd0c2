"""Hands a variable's handle to operations in branches of graphs, whose gradients TensorFlow else refuses to make."""

from typing import Any

import tensorflow as tf

BRANCHES = ("CondBranchFuncGraph", "_CondGradFuncGraph")  # the names of TensorFlow's private classes


def seen(handle: tf.Tensor) -> tf.Tensor:
    """The handle as the graph being traced sees it: a branch has it from the graph around it."""
    graph: Any = tf.compat.v1.get_default_graph()
    branches = []
    while type(graph).__name__ in BRANCHES:
        branches.append(graph)
        graph = graph.outer_graph
    if branches and hasattr(graph, "capture"):
        for each in (graph, *reversed(branches)):
            handle = each.capture(handle)
    return handle
