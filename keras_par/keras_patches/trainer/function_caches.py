"""Keeps what a look, or a trace that was given up, has made of the functions that a step calls away from the step."""

import contextlib
import traceback
from collections.abc import Iterator

import tensorflow as tf

from keras_par.keras_patches.table.keras_names import find

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
