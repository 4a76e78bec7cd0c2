"""Traces a model's forward pass and loss without its variables taking memory, for models that fit nowhere, too."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import keras
import tensorflow as tf

from keras_par.keras_patches.coordination.zero_state import inner_of
from keras_par.keras_patches.trainer.abstract_step import spec_of
from keras_par.keras_patches.update.variable_update import is_elementwise
from keras_par.keras_patches.variables import operations
from keras_par.keras_patches.variables.abstract_variable import OpenVariable, values_hidden, without_values
from keras_par.plan.trace import TRACED_ROWS, Parameter, Trace, without_idle_gradients
from keras_par.searching.backward import note_backward
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
        prepare(model)
        model.optimizer.build(model.trainable_variables)
    return trace_of(model, model.optimizer, sizes)


def look_at_built(model: keras.Model, sizes: Sequence[int] = ()) -> Trace:
    """The trace of a compiled model that has its values, which stay as they are.

    Raises:
        ValueError: see `look_at`.
    """
    prepare(model)
    with values_hidden(model.variables), without_values():
        optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
        optimizer.build(model.trainable_variables)
        return trace_of(model, optimizer, sizes)


def prepare(model: keras.Model) -> None:
    """Compiles a model that is not, for SGD on the mean of its outputs.

    Raises:
        ValueError: the model is not built.
    """
    if not model.built:
        raise ValueError(f"keras-par: model '{model.name}' is not built: give it an Input, or call it once.")
    if not model.compiled:
        model.compile("sgd", loss=lambda y, output: keras.ops.mean(output, axis=-1))


def trace_of(model: keras.Model, optimizer: keras.optimizers.Optimizer, sizes: Sequence[int]) -> Trace:
    """The trace of a model whose variables have no values."""
    operations.install()
    trace = Trace()
    note_parameters(model, optimizer, trace)
    recorder = Recorder(trace)
    variables = [variable for variable in model.variables if isinstance(variable, OpenVariable)]

    def step() -> None:
        for variable in variables:
            value = tf.compat.v1.placeholder(variable.dtype, variable.shape)
            if value.dtype.is_floating:  # others are seeds and counters
                value = recorder.variable(value, variable.path, variable.trainable)
            variable.trace_value = value
        x, y = keras.tree.map_structure(placeholder, known(model, spec_of(model, TRACED_ROWS, sizes)))
        loss = model.compute_loss(x, y, model(x, training=True), training=True)
        note_backward(trace, recorder, tf.convert_to_tensor(getattr(loss, "local", loss)))

    try:
        tf.function(step, autograph=False).get_concrete_function()
    finally:
        for variable in variables:
            variable.trace_value = None
    note_blocks(trace, recomputable(model))
    without_idle_gradients(trace)
    return trace


def recomputable(model: keras.Model) -> Iterator[str]:
    """The names of the layers that may be computed once more in the backward pass.

    They change no state but seeds, and have no embeddings, which would be read whole.
    """
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from recomputable(layer)
            continue
        has_state = any(tf.as_dtype(variable.dtype).is_floating for variable in layer.non_trainable_variables)
        has_tables = any(isinstance(part, keras.layers.Embedding) for part in layer._flatten_layers())
        if not has_state and not has_tables:
            yield layer.name


def note_blocks(trace: Trace, names: Iterable[str]) -> None:
    """Writes down which operations belong to layers of these names."""
    known = set(names)
    for place, operation in enumerate(trace.operations):
        name = next((part for part in operation.layer.split("/") if part in known), "")
        trace.operations[place] = replace(operation, block=name)


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
    is_by_elements = all(map(is_elementwise, inner_of(optimizer)))
    for variable in model.variables:
        trace.parameters.append(
            Parameter(
                variable.path,
                tuple(variable.shape),
                tf.as_dtype(variable.dtype).size,
                bool(variable.trainable),
                slots.get(variable.path, 0),
                is_by_elements,
            )
        )


def size_of(variable: keras.Variable) -> int:
    return math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
