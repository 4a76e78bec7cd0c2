"""How sharded variables show themselves: whole to layers, as shards to optimizers, gathered once to loops."""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from keras_par.plan.placement import WHOLE, Placement

PLACEMENT = "_keras_par_placement"  # of variables that are not whole everywhere

_is_local: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_local_view", default=False)
_whole_values: contextvars.ContextVar[dict[int, tf.Tensor] | None] = contextvars.ContextVar(
    "keras_par_whole", default=None
)


class Leader(Protocol):
    """What reads and assigns whole sharded variables on the one rank that acts for all, while the others serve it."""

    def read(self, variable: Any) -> tf.Tensor:
        """A whole value."""

    def assign(self, variable: Any, value: tf.Tensor) -> None:
        """Gives all ranks their shards of a whole value."""


_leader: contextvars.ContextVar[Leader | None] = contextvars.ContextVar("keras_par_leader", default=None)


@contextlib.contextmanager
def local_view(is_local: bool = True) -> Iterator[None]:
    """Within it sharded variables look like ordinary ones of the shard's shape, as optimizers need them.

    With `is_local` False it undoes that for a block.
    """
    token = _is_local.set(is_local)
    try:
        yield
    finally:
        _is_local.reset(token)


def is_local() -> bool:
    """True within `local_view`."""
    return _is_local.get()


@contextlib.contextmanager
def made_whole(variables: Iterable[Any]) -> Iterator[None]:
    """Within it these sharded variables are whole tensors, gathered now, or what is assigned to them."""
    values = {id(variable): tf.convert_to_tensor(variable.value) for variable in variables}
    token = _whole_values.set({**(_whole_values.get() or {}), **values})
    try:
        yield
    finally:
        _whole_values.reset(token)


def whole_value(variable: Any) -> tf.Tensor | None:
    """What `made_whole` gathered of a variable, None outside of it."""
    return (_whole_values.get() or {}).get(id(variable))


def note_whole(variable: Any, value: tf.Tensor) -> None:
    """Has a variable that is `made_whole` be what is assigned to it."""
    known = _whole_values.get()
    if known is not None and id(variable) in known:
        known[id(variable)] = value


@contextlib.contextmanager
def led_by(leader: Leader) -> Iterator[None]:
    """Within it this rank alone runs code, so that sharded variables are read and assigned by `leader`."""
    token = _leader.set(leader)
    try:
        yield
    finally:
        _leader.reset(token)


def leader() -> Leader | None:
    """What `led_by` says, None outside of it and within `local_view`."""
    return None if is_local() else _leader.get()


def placement_of(variable: Any) -> Placement:
    """How a variable, its gradient and its slots lie on the ranks."""
    return getattr(variable, PLACEMENT, WHOLE)


def is_sharded(variable: Any) -> bool:
    """True for a variable of whose value this rank stores a shard only."""
    return any(placement_of(variable).stored)


def is_summed_backward(variable: Any) -> bool:
    """True for a variable whose gradient is summed over ranks with other rows where it is computed, see `Placement`."""
    return placement_of(variable).is_summed_backward


def sharded(variables: Iterable[Any]) -> list[Any]:
    """Those of `variables` of whose values this rank stores a shard only."""
    return [variable for variable in variables if is_sharded(variable)]


def identity(variable: Any) -> int:
    """A number that a Keras variable and TensorFlow's in it share."""
    return id(getattr(variable, "_value", variable))
