"""Keeps what is known of the rows in a shape where Keras and TensorFlow make numbers and constants of it."""

import tensorflow as tf

from keras_par.keras_patches.rows.batch_rows import BatchRows
from keras_par.keras_patches.rows.row_dims import Rows, is_symbolic
from keras_par.sharding import step as steps


def rows_of_step() -> BatchRows | None:
    """The rows of the step whose code is running, None where its draws are not shared among ranks."""
    step = steps.current()
    if step is None or step.rows is None or step.communicator.size == 1:
        return None
    built_eagerly = tf.executing_eagerly() and step.rows.graph is not None  # as variables are inside of a step
    return None if built_eagerly else step.rows


def marked_shape(original):
    """In a step the numbers of rows in the shape of a tensor are known as such."""

    def replacement(x):
        rows = rows_of_step()
        shape = original(x)
        is_value = isinstance(x, tf.Tensor)
        return rows.mark(x, shape) if rows is not None and is_value and isinstance(shape, tuple) else shape

    return replacement


def noted_shape(original):
    """Where a constant takes the place of a tensor's shape, it is known of which."""

    def replacement(input, *args, **kwargs):
        result = original(input, *args, **kwargs)
        rows = rows_of_step()
        if rows is not None and is_symbolic(result) and is_symbolic(input) and result.op.type == "Const":
            rows.dims.note_shape(result, input)
        return result

    return replacement


def noted_constant(original):
    """Where a constant is made of a shape, as zeros are, its rows are known."""

    def replacement(value, shape, *args, **kwargs):
        return noted(original(value, shape, *args, **kwargs), shape)

    return replacement


def noted_fill(original):
    """As `noted_constant` for what is too large for a constant."""

    def replacement(dims, *args, **kwargs):
        return noted(original(dims, *args, **kwargs), dims)

    return replacement


def noted(result, shape):
    """`result`, whose rows are known if `shape` is a list that tells them."""
    rows = rows_of_step()
    if rows is not None and is_symbolic(result) and isinstance(shape, (list, tuple)):
        found = [(dim, each) for dim, each in enumerate(rows.elements(shape)) if isinstance(each, Rows)]
        if len(found) == 1:
            [(dim, known)] = found
            rows.dims.note(result, known.at(dim))
    return result


def noted_copy(original):
    """Zeros and ones like a tensor have its rows, where a constant takes their place, too."""

    def replacement(tensor, *args, **kwargs):
        result = original(tensor, *args, **kwargs)
        rows = rows_of_step()
        if rows is not None and is_symbolic(result) and is_symbolic(tensor):
            rows.dims.note(result, rows.of(tensor))
        return result

    return replacement


def noted_vector(original):
    """What is known of the numbers of a shape is known of the tensor they become."""

    def replacement(shape):
        result = original(shape)
        rows = rows_of_step()
        if rows is not None and isinstance(result, tf.Tensor):
            rows.note_elements(shape, result)
        return result

    return replacement
