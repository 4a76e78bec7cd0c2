"""Undoes what a trace that is given up, or made by a probe, has changed, because the step is traced once more."""

import contextlib
import traceback
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_par.base import generators
from keras_par.keras_patches.table.uses import find

FUNCTION = "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function"


@contextlib.contextmanager
def inlined() -> Iterator[None]:
    """Within it functions that a step calls are traced as parts of it, and not kept, as they would be for the step."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def begin_anew(error: BaseException) -> None:
    """Lets functions whose first trace `error` has ended begin as if they had not been called.

    TensorFlow would refuse variables that they make.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        function = frame.f_locals.get("self")
        if isinstance(function, find(FUNCTION)) and function._no_variable_creation_config is None:
            function._variable_creation_config = function._created_variables = None


class PythonState:
    """The states of the generators of Python and NumPy, and a model's public attributes that are plain values or lists.

    Args:
        model: whose attributes they are.
    """

    def __init__(self, model: keras.Model):
        self._model = model
        self._states = generators.states()
        public = {name: value for name, value in vars(model).items() if name[0] != "_" and name != "built"}
        self._plain = {name: value for name, value in public.items() if isinstance(value, (int, float, str))}
        self._lists = {name: (value, list(value)) for name, value in public.items() if isinstance(value, list)}

    def put_back(self) -> None:
        """Makes all of it what it was."""
        generators.restore(self._states)
        vars(self._model).update(self._plain)
        for name, (value, items) in self._lists.items():
            vars(self._model)[name] = value
            if len(value) != len(items):
                value[:] = items
