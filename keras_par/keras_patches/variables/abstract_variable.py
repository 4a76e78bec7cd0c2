"""Keras variables without a value: of a model that is built to be looked at, however large it is."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from keras_par.sharding.recording import RecordedTensor
from keras_par.sharding.variable_views import whole_value

_is_open: ContextVar[bool] = ContextVar("keras_par_open_variables", default=False)


class OpenVariable(keras.Variable):
    """A variable that knows its shape only, whatever is assigned to it.

    Attributes:
        trace_value: what stands for its value in the trace under way, None outside of one.
        reference: of an optimizer's state the variable that it is for.
    """

    trace_value: Any = None
    reference: "OpenVariable | None" = None

    @property
    def value(self) -> Any:
        """What stands for the value in a trace.

        Raises:
            RuntimeError: no trace is under way.
        """
        if in_symbolic_scope():
            return self._maybe_autocast(tf.zeros(self._shape, self._dtype))
        gathered = whole_value(self)
        if gathered is not None:
            return gathered
        if self.trace_value is None:
            raise RuntimeError(
                f"keras-par: variable '{self.path}' has no value, because its model is only looked at: build the model "
                "without reading its weights."
            )
        return self._maybe_autocast(self.trace_value)

    def assign(self, value):
        """Forgets the value, which a trace notes."""
        if isinstance(self.trace_value, RecordedTensor) and isinstance(value, RecordedTensor):
            self.trace_value.recorder.assigned(self.trace_value, value)
        return value


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Within it variables are made without a value, and so take no memory."""
    token = _is_open.set(True)
    try:
        yield
    finally:
        _is_open.reset(token)


@contextlib.contextmanager
def values_hidden(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Within it variables that have values are as if they had none."""
    kinds = [type(variable) for variable in variables]
    for variable in variables:
        variable.__class__ = OpenVariable
    try:
        yield
    finally:
        for variable, kind in zip(variables, kinds, strict=True):
            variable.__class__ = kind
            vars(variable).pop("trace_value", None)


def become_open(variable: keras.Variable) -> bool:
    """Makes a variable that is being initialized one without a value, if it is made to be looked at."""
    if _is_open.get():
        variable.__class__ = OpenVariable
    return _is_open.get()


def is_traced(variable: Any) -> bool:
    """True for a variable without a value that something stands for now."""
    return isinstance(variable, OpenVariable) and variable.trace_value is not None
