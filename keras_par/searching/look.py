"""Traces a model's forward pass and loss without its variables taking memory, for models that fit nowhere, too."""

import math
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from keras_par.plan.trace import TRACED_ROWS, Parameter, Trace, without_idle_gradients
from keras_par.seam.call.dry_step import spec_of
from keras_par.seam.variables import operations
from keras_par.seam.variables.open_variable import OpenVariable, values_hidden, without_values
from keras_par.sharding.recording import Recorder


def look_at(build: Callable[[], keras.Model], sizes: Sequence[int] = ()) -> Trace:
    """The trace of the model that `build` makes, compiled; its weights are never made.

    A model that is not compiled is trained by SGD on the mean of its outputs. `sizes` are of the dims of its inputs
    that it leaves open, in their order.

    Raises:
        ValueError: the model is not built, or does not tell the shapes of its inputs.
    """
    with without_values():
        model = build()
        require_built(model)
        if not model.compiled:
            model.compile("sgd", loss=lambda y, output: keras.ops.mean(output, axis=-1))
        model.optimizer.build(model.trainable_variables)
    return trace_of(model, model.optimizer, sizes)


def look_at_built(model: keras.Model, sizes: Sequence[int] = ()) -> Trace:
    """The trace of a compiled model that has its values, which stay as they are.

    Raises:
        ValueError: see `look_at`.
    """
    require_built(model)
    with values_hidden(model.variables), without_values():
        optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
        optimizer.build(model.trainable_variables)
        return trace_of(model, optimizer, sizes)


def require_built(model: keras.Model) -> None:
    if not model.built:
        raise ValueError(f"keras-par: model '{model.name}' is not built: give it an Input, or call it once.")


def trace_of(model: keras.Model, optimizer: keras.optimizers.Optimizer, sizes: Sequence[int]) -> Trace:
    """The trace of a model whose variables have no values."""
    operations.install()
    trace = Trace()
    note_parameters(model, optimizer, trace)
    recorder = Recorder(trace)
    variables = [variable for variable in model.variables if isinstance(variable, OpenVariable)]
    try:
        with tf.Graph().as_default():
            for variable in variables:
                value = tf.compat.v1.placeholder(variable.dtype, variable.shape)
                if value.dtype.is_floating:  # others are seeds and counters
                    value = recorder.variable(value, variable.path, variable.trainable)
                variable.trace_value = value
            x, y = keras.tree.map_structure(placeholder, known(model, spec_of(model, TRACED_ROWS, sizes)))
            model.compute_loss(x, y, model(x, training=True), training=True)
    finally:
        for variable in variables:
            variable.trace_value = None
    without_idle_gradients(trace)
    return trace


def known(model: keras.Model, specs: tuple) -> tuple:
    """The types of a batch, of which all sizes must be known.

    Raises:
        ValueError: one is not.
    """
    if not all(spec.shape.is_fully_defined() for spec in keras.tree.flatten(specs)):
        raise ValueError(
            f"keras-par: the inputs of '{model.name}' leave sizes open, which costs depend on: give them by "
            "input_shape, on the command line by --input-shape."
        )
    return specs


def placeholder(spec: tf.TensorSpec) -> tf.Tensor:
    """Stands for data of these types."""
    return tf.compat.v1.placeholder(spec.dtype, spec.shape)


def note_parameters(model: keras.Model, optimizer: keras.optimizers.Optimizer, trace: Trace) -> None:
    """Writes down the variables, and how much of the optimizer's state belongs to each."""
    slots: dict[str, int] = {}
    for variable in optimizer.variables:
        reference = getattr(variable, "reference", None)
        if reference is None or tuple(reference.shape) != tuple(variable.shape):
            trace.other_bytes += size_of(variable)
        else:
            slots[reference.path] = slots.get(reference.path, 0) + size_of(variable)
    for variable in model.variables:
        trace.parameters.append(
            Parameter(
                variable.path,
                tuple(variable.shape),
                tf.as_dtype(variable.dtype).size,
                bool(variable.trainable),
                slots.get(variable.path, 0),
            )
        )


def size_of(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
