"""Names for collectives that are the same on every rank: numbered in the order in which a graph is traced."""

import contextlib
import contextvars
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# The names of TensorFlow's private classes of graphs that run many times, whose runs could overlap.
LOOPS = ("WhileBodyFuncGraph", "WhileCondFuncGraph")
BRANCH = "CondBranchFuncGraph"

_numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # graph -> kind -> how many have been named


_step: contextvars.ContextVar[Any] = contextvars.ContextVar("keras_par_step_graph", default=None)


@contextlib.contextmanager
def within_step() -> Iterator[None]:
    """Around the tracing of a step, which may itself be in a loop: the weights make one run wait for the one before."""
    token = _step.set(None if tf.executing_eagerly() else tf.compat.v1.get_default_graph())
    try:
        yield
    finally:
        _step.reset(token)


def numbered(kind: str) -> str:
    """The next name for a collective of this kind in the graph being traced; eagerly, where one follows another, one.

    Graphs inside others, as branches are, count with the one of the step, or else the outermost, beside which they run.
    """
    if tf.executing_eagerly():
        return f"kp.{kind}"
    numbers = _numbers.setdefault(enclosing()[-1], Counter())
    numbers[kind] += 1
    return f"kp.{kind}.{numbers[kind] - 1}"


def num_named() -> int:
    """How many collectives have been named in the graph being traced and those around it; 0 eagerly."""
    return 0 if tf.executing_eagerly() else _numbers.get(enclosing()[-1], Counter()).total()


def unique(kind: str) -> str:
    """As `numbered`, for operations on sharded tensors.

    Raises:
        ValueError: the graph is in a loop within the step.
    """
    if is_in_loop():
        raise ValueError(
            "keras-par: a sharded tensor is used within a loop of a graph, where ranks cannot talk: make it whole "
            "before the loop by tf.convert_to_tensor(tensor)."
        )
    return numbered(kind)


def is_in_loop() -> bool:
    """True where a graph is traced that runs many times within a step, or within a function of the user's."""
    graphs = [] if tf.executing_eagerly() else enclosing()
    return any(type(graph).__name__ in LOOPS for graph in graphs if graph is not _step.get())


def num_functions() -> int:
    """How many functions are being traced, one in the other, that a step in a graph calls; no branches and loops."""
    graphs = [] if tf.executing_eagerly() else enclosing()
    return sum(type(graph).__name__ not in (BRANCH, *LOOPS) for graph in graphs[:-1])


def is_within_others() -> bool:
    """True where a graph is traced within that of the step, or within another one."""
    return len(enclosing()) > 1


def enclosing() -> list[Any]:
    """The graph being traced and those around it, up to that of the step, or else the outermost."""
    graphs = [tf.compat.v1.get_default_graph()]
    while graphs[-1] is not _step.get() and hasattr(getattr(graphs[-1], "outer_graph", None), "outer_graph"):
        graphs.append(graphs[-1].outer_graph)
    return graphs
