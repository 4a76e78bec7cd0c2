"""Lays the state of optimizers out over the ranks with other rows, as a strategy's option `zero` says."""

import logging
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_par.plan.placement import Placement, alike, updated_in_parts
from keras_par.seam.models.binding import Binding, optimizers_of
from keras_par.seam.update.sharded_optimizer import is_elementwise, slots_by_variable
from keras_par.seam.variables.layouts import mesh_of_rows
from keras_par.seam.variables.sharded_variable import divide, make_whole
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.parts import has_own_part
from keras_par.sharding.views import PLACEMENT, is_sharded, placement_of

EMBEDDINGS = ("Embedding", "ReversibleEmbedding")  # whose tables have gradients of single rows
logger = logging.getLogger("keras_par")


def lay_out_state(model: keras.Model, binding: Binding) -> None:
    """Says of each trainable variable which part of it this rank updates, and divides the state that is there so.

    A variable stays whole that is small, has a gradient of single rows, or an optimizer that looks beyond single
    elements. Costs no collective, or one all-gather for each variable of a state that was divided otherwise.

    Args:
        model: built.
        binding: its strategy.
    """
    mesh, options = mesh_of_rows(binding.strategy), binding.options
    optimizers = optimizers_of(model)
    inner = [each for optimizer in optimizers for each in inner_of(optimizer)]
    others = sorted({type(each).__name__ for each in inner if not is_elementwise(each)})
    slots = [slots_by_variable(optimizer) for optimizer in optimizers]
    if options.zero and others:
        binding.say(
            "zero=%d does nothing for '%s': its optimizer %s needs whole variables for its update",
            options.zero,
            model.name,
            ", ".join(others),
        )
    tables = {id(weight) for layer in model._flatten_layers() if is_table(layer) for weight in layer.weights}
    for variable in model.trainable_variables:
        is_meant = bool(options.zero) and not others and id(variable) not in tables
        placement = wanted(variable, mesh, options.zero_min_kb) if is_meant else None
        if placement is not None:
            setattr(variable, PLACEMENT, placement)
            variable.mesh = mesh
        elif has_own_part(variable):
            setattr(variable, PLACEMENT, alike(placement_of(variable).stored, mesh.batch_axis))
        else:
            continue
        for slot in {id(slot): slot for each in slots for slot in each.get(id(variable), ())}.values():
            lay_out(slot, placement_of(variable), mesh)


def inner_of(optimizer: keras.optimizers.Optimizer) -> Iterator[keras.optimizers.Optimizer]:
    """The optimizers that do the work of one that hands it on."""
    inner = getattr(optimizer, "optimizers", None) or [getattr(optimizer, "inner_optimizer", None)]
    for each in inner:
        yield from [optimizer] if each is None else inner_of(each)


def is_table(layer: keras.layers.Layer) -> bool:
    return any(kind.__name__ in EMBEDDINGS for kind in type(layer).__mro__)


def wanted(variable: keras.Variable, mesh: RankMesh, min_kb: float) -> Placement | None:
    """How a variable is to lie that is updated in parts, None if it is not."""
    assert mesh.batch_axis is not None
    stored = placement_of(variable).stored
    shape = mesh.local_shape(variable.shape, stored) if stored else tuple(variable.shape)
    num_parts, num_bytes = mesh.size(mesh.batch_axis), tf.TensorShape(shape).num_elements() * variable_bytes(variable)
    if num_parts == 1 or mesh.batch_axis in stored or num_bytes < min_kb * 2**10 or is_range(variable):
        return None
    return updated_in_parts(tuple(variable.shape), stored, mesh.batch_axis, num_parts)


def variable_bytes(variable: keras.Variable) -> int:
    """Of an element."""
    return tf.as_dtype(variable.dtype).size


def is_range(variable: keras.Variable) -> bool:
    """True for the ranges of float8, which take their gradients as values."""
    return getattr(variable, "overwrite_with_gradient", False)


def lay_out(slot: keras.Variable, placement: Placement, mesh: RankMesh) -> None:
    """Divides the state for a variable as its placement says, or makes it whole again."""
    if (slot.axes if is_sharded(slot) else ()) == placement.slots:
        return
    if is_sharded(slot):
        make_whole(slot)
    if any(placement.slots):
        divide(slot, alike(placement.slots, placement.data_axis), mesh)
