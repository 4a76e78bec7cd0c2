"""Lays the state of optimizers out over the ranks with other rows, as a strategy's option `zero` says."""

import math
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_par.comm.broadcast import broadcast_variables
from keras_par.plan.placement import Placement, alike, updated_in_parts
from keras_par.seam.models.binding import Binding, optimizers_of
from keras_par.seam.update.sharded_optimizer import is_elementwise, slots_by_variable
from keras_par.seam.variables.layouts import mesh_of_rows
from keras_par.seam.variables.sharded_variable import divide, make_whole
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.parts import has_own_part
from keras_par.sharding.views import PLACEMENT, is_sharded, placement_of

EMBEDDINGS = ("Embedding", "ReversibleEmbedding")  # whose tables have gradients of single rows


def lay_out_state(model: keras.Model, binding: Binding) -> None:
    """Says of each trainable variable which part of it this rank updates, and divides the state that is there so.

    A variable stays whole that is small, has a gradient of single rows, or an optimizer that looks beyond single
    elements. State that is there becomes rank 0's where the strategy has it so. Costs one all-reduce of a number, a
    broadcast of the state, and one all-gather for each variable of a state that was divided otherwise.

    Args:
        model: built.
        binding: its strategy.
    """
    has_parts = binding.options.zero > 0 and is_elementwise_only(model, binding)
    if has_parts:
        build_where_another_has(model, binding)
    slots = [slots_by_variable(optimizer) for optimizer in optimizers_of(model)]
    mesh = mesh_of_rows(binding.strategy)
    changed = place(model, mesh, binding.options.zero_min_kb if has_parts else None)
    found = [(slot, placement_of(each)) for each in changed for known in slots for slot in known.get(id(each), ())]
    if binding.options.broadcast_variables:
        broadcast_variables([slot for slot, _ in found if not is_sharded(slot)], communicator=binding.communicator)
    for slot, placement in found:
        lay_out(slot, placement, mesh)


def is_elementwise_only(model: keras.Model, binding: Binding) -> bool:
    """True if all optimizers of a model can update parts; says which cannot."""
    inner = [each for optimizer in optimizers_of(model) for each in inner_of(optimizer)]
    others = sorted({type(each).__name__ for each in inner if not is_elementwise(each)})
    if others:
        binding.say(
            "zero=%d does nothing for '%s': its optimizer %s needs whole variables for its update",
            binding.options.zero,
            model.name,
            ", ".join(others),
        )
    return not others


def build_where_another_has(model: keras.Model, binding: Binding) -> None:
    """Makes the state of the model's optimizer if another rank has some already, as from a file that it alone read."""
    optimizer = getattr(model, "optimizer", None)
    is_built = optimizer is not None and optimizer.built
    nobody_has = binding.communicator.all_agree(not is_built, "kp.zero")
    if optimizer is not None and not is_built and not nobody_has:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(model.trainable_variables)


def place(model: keras.Model, mesh: RankMesh, min_kb: float | None) -> list[keras.Variable]:
    """Gives each variable its placement, and returns those that are updated in parts, or were before.

    Args:
        model: built.
        mesh: of the strategy.
        min_kb: kilobytes that a variable must have; None to update all of them whole.
    """
    tables = {id(weight) for layer in model._flatten_layers() if is_table(layer) for weight in layer.weights}
    changed = []
    for variable in model.trainable_variables:
        placement = None if min_kb is None or id(variable) in tables else wanted(variable, mesh, min_kb)
        if placement is not None:
            setattr(variable, PLACEMENT, placement)
            variable.mesh = mesh
        elif has_own_part(variable):
            setattr(variable, PLACEMENT, alike(placement_of(variable).stored, mesh.batch_axis))
        else:
            continue
        changed.append(variable)
    return changed


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
    stored, num_parts = placement_of(variable).stored, mesh.size(mesh.batch_axis)
    shape = mesh.local_shape(variable.shape, stored) if stored else variable.shape
    num_bytes = math.prod(shape) * tf.as_dtype(variable.dtype).size
    if num_parts == 1 or mesh.batch_axis in stored or num_bytes < min_kb * 2**10 or is_range(variable):
        return None
    return updated_in_parts(tuple(variable.shape), stored, mesh.batch_axis, num_parts)


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
