"""Computes a function again in the backward pass, so that what it computes on the way takes no memory until then.

What `tf.recompute_grad` is, which `keras.remat` is otherwise, but with keyword arguments, shards, seeds and state.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager.record import could_possibly_record, record_operation, should_record_backprop

from keras_par.job.step_clock import MARK
from keras_par.keras_patches.step.replay import Replay
from keras_par.keras_patches.update.gradients import as_they_are
from keras_par.sharding.tensor import ShardedTensor

MASK, LOGITS = "_keras_mask", "_keras_logits"  # what Keras remembers of a tensor
# Operations that would give or do something else the second time, by what their types begin with.
UNREPEATABLE = ("Random", "Rng", "Multinomial", "TruncatedNormal", "ParameterizedTruncatedNormal", "ResourceScatter")


def remat(f: Callable) -> Callable:
    """`f`, computed again where a tape takes its gradient in a graph; eagerly it is called as it is.

    What it draws, assigns, adds as a loss and sends to other ranks is as without, but that it sends twice.
    """

    @functools.wraps(f, updated=())
    def replacement(*args, **kwargs):
        if tf.executing_eagerly() or not could_possibly_record():
            return f(*args, **kwargs)
        return recomputed(f, args, kwargs)

    return replacement


def of_symbols(original):
    """Lets `keras.RematScope` look at the sizes of outputs, which Keras computes from symbols and not from tensors."""

    def symbol(value: Any) -> Any:
        is_tensor = isinstance(value, (tf.Tensor, ShardedTensor)) and value.shape.rank is not None
        return keras.KerasTensor(value.shape, value.dtype.name) if is_tensor else value

    def replacement(self, call, *args, **kwargs):
        return original(self, call, *keras.tree.map_structure(symbol, args), **keras.tree.map_structure(symbol, kwargs))

    return replacement


def recomputed(f: Callable, args: tuple, kwargs: dict) -> Any:
    """What `f` returns, with a gradient that is taken of a second call of it.

    The first call is recorded by the tapes, too. So whatever it leaves elsewhere, as a loss, has its gradient.

    Raises:
        ValueError: it would not be the same the second time.
    """
    graph, replay = tf.compat.v1.get_default_graph(), Replay()
    given = with_gradient(args, kwargs, change=tf.identity)  # layers take masks from what they are given
    num_before = len(graph.get_operations())
    with replay.first(), tf.GradientTape() as tape:
        result = f(*args, **kwargs)
    made = [op for op in graph.get_operations()[num_before:] if op.type != "Placeholder"]
    require_repeatable(f, made)
    candidates = [*tensors_of(given), *replay.values, *read_from_outside(made)]
    tensors = {tensor.name: tensor for tensor in candidates if may_have_gradient(tensor)}
    variables = [variable for variable in tape.watched_variables() if replay.value_of(variable) is None]
    sources = [*tensors.values(), *variables]
    outputs = tensors_of(result)

    def backward(*upstream):
        with tf.control_dependencies(upstream), tf.GradientTape() as tape:
            tape.watch(list(tensors.values()))
            nothing = zero_after(upstream)
            args, kwargs = with_gradient(*given, change=lambda tensor: tensor + tf.cast(nothing, tensor.dtype))
            again = tensors_of(replay.again(lambda: f(*args, **kwargs)))
        with as_they_are():
            return tape.gradient(again, sources, upstream)

    kept = [tf.identity(output) for output in outputs]
    if kept and sources:
        record_operation("Recomputed", kept, list(map(tf.convert_to_tensor, sources)), backward)
    left = iter(kept)
    [result] = with_gradient(result, change=lambda _: next(left))
    return result


def zero_after(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """A 0 that is made of one element of each tensor, because XLA keeps no other order."""
    elements = [tf.cast(tf.reduce_max(tf.reshape(tensor, [-1])[:1]), tf.bool) for tensor in tensors]
    return tf.where(tf.reduce_all([element == element for element in elements]), 0.0, float("nan"))


def with_gradient(*values: Any, change: Callable[[tf.Tensor], tf.Tensor]) -> list[Any]:
    """Structures in which each tensor that may have a gradient, shards and logits too, is what `change` makes of it.

    What stands in several places stays one, so that it is sent once for all that read it.
    """
    known: dict[int, tuple[Any, Any]] = {}  # with the value, as the number of one that is gone may be used again

    def changed(value: Any) -> Any:
        if id(value) not in known:
            known[id(value)] = value, made(value)
        return known[id(value)][1]

    def made(value: Any) -> Any:
        if isinstance(value, ShardedTensor) and value.dtype.is_floating:
            new: Any = value.with_local(change(value.local))
        elif isinstance(value, tf.Tensor) and value.dtype.is_floating:
            new = change(value)
        else:
            return value
        if getattr(value, MASK, None) is not None:
            setattr(new, MASK, getattr(value, MASK))
        if hasattr(value, LOGITS):
            setattr(new, LOGITS, changed(getattr(value, LOGITS)))
        return new

    return [keras.tree.map_structure(changed, value) for value in values]


def tensors_of(value: Any) -> list[tf.Tensor]:
    """The tensors of a structure that may have a gradient, in the order in which `with_gradient` finds them."""
    found: list[tf.Tensor] = []

    def keep(tensor: tf.Tensor) -> tf.Tensor:
        found.append(tensor)
        return tensor

    with_gradient(value, change=keep)
    return found


def read_from_outside(made: Sequence[tf.Operation]) -> list[tf.Tensor]:
    """The tensors that these operations read and others have made."""
    own = {op.name for op in made}
    return [tensor for op in made for tensor in op.inputs if tensor.op.name not in own]


def may_have_gradient(tensor: tf.Tensor) -> bool:
    """True if a tape sees it."""
    return tensor.dtype.is_floating and should_record_backprop([tensor])


def require_repeatable(f: Callable, made: Iterable[tf.Operation]) -> None:
    """Raises ValueError if one of the operations that `f` made would do something else the second time."""
    wrong = next((op for op in made if op.type.startswith(UNREPEATABLE) and MARK not in op.name), None)
    if wrong is not None:
        name = getattr(getattr(f, "__self__", f), "name", None) or getattr(f, "__name__", str(f))
        raise ValueError(
            f"keras-par: '{name}' cannot be recomputed, because its operation {wrong.type} at '{wrong.name}' would do "
            "something else the second time: draw by keras.random with a keras.random.SeedGenerator, assign by "
            "variable.assign, or leave it out of what is recomputed."
        )
