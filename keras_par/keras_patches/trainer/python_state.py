"""Puts back what a trace that is given up has changed in Python, because the step is traced once more."""

import keras

from keras_par.base import generators


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
