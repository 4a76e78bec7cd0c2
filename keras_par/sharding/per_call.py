"""Remembers within one call of a model which tensors have been entered, so that their gradients are reduced once.

Query, key and value of an attention read the same tensor; its three gradients are then added before one all-reduce.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import tensorflow as tf
from tensorflow.python.eager.record import should_record_backprop

_memory: contextvars.ContextVar[dict | None] = contextvars.ContextVar("keras_par_memory", default=None)


@contextlib.contextmanager
def remembered_in(memory: dict | None) -> Iterator[None]:
    """Within it what is made once is kept in this dictionary, which lives as long as a model's call; None for none."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def once(tensor: tf.Tensor, what: str, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """`make()`, which makes `what` of `tensor`, or what it was when this call of the model asked for it before."""
    found = _memory.get()
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
