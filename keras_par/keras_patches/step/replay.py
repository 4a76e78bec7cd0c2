"""Puts back, to call a function again, what Keras knew and what variables held when it was called first."""

import contextlib
import contextvars
import copy
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.common import global_state

from keras_par.keras_patches.variables.layer_outputs import outputs_noted

# What Keras keeps of the layers under way, which is of one call only.
KNOWN = ("name_scope_stack", "autocast_scope", "current_call_ctx")

_first: contextvars.ContextVar[tuple["Replay", ...]] = contextvars.ContextVar("keras_par_first", default=())
_again: contextvars.ContextVar["Replay | None"] = contextvars.ContextVar("keras_par_again", default=None)


class Replay:
    """Calls a function a second time in a graph as it was called first, in the scopes in which the replay is made."""

    def __init__(self):
        self._graph = tf.compat.v1.get_default_graph()
        self._context = contextvars.copy_context()
        self._known = {name: copy.copy(global_state.get_global_attribute(name)) for name in KNOWN}
        # By id: a variable, and what it held when it was first read, and when it was first assigned.
        self._read: dict[int, tuple[tf.Variable, tf.Tensor]] = {}
        self._before: dict[int, tuple[tf.Variable, tf.Tensor]] = {}

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Within it the function is called first: what it reads and assigns is noted."""
        token = _first.set((*_first.get(), self))
        try:
            yield
        finally:
            _first.reset(token)

    def note_read(self, variable: tf.Variable, value: tf.Tensor) -> None:
        """Keeps what was read, unless that was in a branch or a loop."""
        if tf.compat.v1.get_default_graph() is self._graph:
            self._read.setdefault(id(variable), (variable, value))

    def note_assigned(self, variable: tf.Variable) -> None:
        """Keeps what a variable holds, be it assigned in a branch or a loop."""
        if id(variable) not in self._before:
            with self._graph.as_default():
                self._before[id(variable)] = variable, variable.read_value()

    def value_of(self, variable: tf.Variable) -> tf.Tensor | None:
        """What the function read of a variable that it does not assign; None where it has to be read anew.

        An update could overtake a second reading, because TensorFlow drops edges of a graph that order it only.
        """
        _, value = self._read.get(id(variable), (None, None))
        return None if id(variable) in self._before else value

    @property
    def values(self) -> list[tf.Tensor]:
        """All that `value_of` gives."""
        return [value for variable, _ in self._read.values() if (value := self.value_of(variable)) is not None]

    def again(self, call: Callable[[], Any]) -> Any:
        """What `call` gives in the same scopes and from the same state; that is afterwards what it was before.

        Losses that layers add, and notes about their outputs, are those of the first time.
        """
        with self._as_known(), self._as_before():
            return self._context.run(self._call, call)

    def _call(self, call: Callable[[], Any]) -> Any:
        token = _again.set(self)
        try:
            with outputs_noted():
                return call()
        finally:
            _again.reset(token)

    @contextlib.contextmanager
    def _as_known(self) -> Iterator[None]:
        now = {name: global_state.get_global_attribute(name) for name in KNOWN}
        for name, value in self._known.items():
            global_state.set_global_attribute(name, copy.copy(value))
        try:
            yield
        finally:
            for name, value in now.items():
                global_state.set_global_attribute(name, value)

    @contextlib.contextmanager
    def _as_before(self) -> Iterator[None]:
        now = [(variable, variable.read_value()) for variable, _ in self._before.values()]
        for variable, value in self._before.values():
            variable.assign(value)
        yield
        for variable, value in now:
            variable.assign(value)


def is_again() -> bool:
    """True while a function is called a second time."""
    return _again.get() is not None


def read(original):
    """A variable's reading, which gives what it gave where a function is called again."""

    def replacement(self, *args, **kwargs):
        again = _again.get()
        known = None if again is None else again.value_of(self)
        value = original(self, *args, **kwargs) if known is None else tf.identity(known)
        for replay in _first.get():
            replay.note_read(self, value)
        return value

    return replacement


def read_rows(original):
    """The reading of some rows, which is one of all rows where a function is called again, or may be."""

    def replacement(self, indices, name=None):
        if _first.get() or _again.get() is not None:
            return tf.gather(self.value(), indices, name=name)
        return original(self, indices, name)

    return replacement


def assigned(original):
    """An assignment, of which functions that may be called again are told."""

    def replacement(self, *args, **kwargs):
        for replay in _first.get():
            replay.note_assigned(self)
        return original(self, *args, **kwargs)

    return replacement
