"""Remembers within one call of a model which tensors have been entered, so that their gradients are reduced once.

Query, key and value of an attention read the same tensor; its three gradients are then added before one all-reduce.
"""

from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.eager.record import should_record_backprop

_memory: Callable[[], dict | None] | None = None


def remember_by(memory: Callable[[], dict | None]) -> None:
    """Says how to find a dictionary that lives as long as the model's call under way; None outside of one."""
    global _memory
    _memory = memory


def once(tensor: tf.Tensor, what: str, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """`make()`, which makes `what` of `tensor`, or what it was when this call of the model asked for it before."""
    found = None if _memory is None else _memory()
    if found is None:
        return make()
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    key = id(tensor), what, id(graph)
    if key not in found or is_lost(tensor, found[key][1]):
        found[key] = tensor, make()
    return found[key][1]


def is_lost(tensor: tf.Tensor, made: tf.Tensor) -> bool:
    """True if a tape sees `tensor` but not what was made of it, because the tape was started in between."""
    return should_record_backprop([tensor]) and not should_record_backprop([made])
