"""Divides variables of which a step would use a part only, because of how others are divided."""

import logging

import keras
import tensorflow as tf

from keras_par.comm.broadcast import broadcast_variables
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.variables.layouts import said_by
from keras_par.keras_patches.variables.sharded_variable import divide
from keras_par.plan.layout import Axes, complaint
from keras_par.plan.placement import alike
from keras_par.sharding.compute import cuts_noted
from keras_par.sharding.variable_views import is_sharded

logger = logging.getLogger("keras_par")


def propagate(model: keras.Model, binding: Binding, x) -> None:
    """Divides what follows from the layout map, in a model that is built.

    A variable follows if each operation that reads it takes the same part of it, and no pattern is for it. Traces the
    model once, and costs one broadcast of the variables that follow.

    Args:
        model: whose optimizer has no state yet; else nothing is done, and a warning says so.
        binding: its strategy, with a mesh.
        x: symbols of the model's inputs.
    """
    if getattr(model, "optimizer", None) is not None and model.optimizer.built:
        logger.warning(
            "keras-par: propagate=True does nothing for '%s', whose optimizer has state: set the strategy before the "
            "model is trained",
            model.name,
        )
        return
    divide_by(binding, following(model, binding, x))


def divide_by(binding: Binding, found: list[tuple[keras.Variable, Axes]]) -> None:
    """Divides whole variables over the strategy's mesh, so. Costs one broadcast of them."""
    mesh = binding.mesh
    assert mesh is not None
    if binding.options.broadcast_variables:
        broadcast_variables([variable for variable, _ in found], communicator=binding.communicator)
    for variable, axes in found:
        divide(variable, alike(axes, mesh.batch_axis), mesh)
        variable._layout = keras.distribution.TensorLayout(axes, binding.strategy.device_mesh)


def following(model: keras.Model, binding: Binding, x) -> list[tuple[keras.Variable, Axes]]:
    """The variables that follow, and how."""
    mesh, types = binding.mesh, keras.tree.map_structure(type_of, x)
    assert mesh is not None
    with cuts_noted() as cuts:
        tf.function(lambda given: model(given, training=True), autograph=False).get_concrete_function(types)
    found = []
    for variable in model.variables:
        _, seen = cuts.get(id(variable), (None, []))
        is_free = not is_sharded(variable) and said_by(binding.strategy, variable.path) is None
        if seen and is_free and len(set(seen)) == 1 and complaint(tuple(variable.shape), seen[0], mesh.plan) is None:
            found.append((variable, seen[0]))
    return found


def type_of(symbol: keras.KerasTensor) -> tf.TypeSpec:
    kind = tf.SparseTensorSpec if symbol.sparse else tf.TensorSpec
    return kind(symbol.shape, symbol.dtype)
