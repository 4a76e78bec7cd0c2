"""Says how a variable that is made is divided: as the slot it is, by its layout, or as a stage of ZeRO has it."""

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from keras_par.comm import world
from keras_par.keras_patches.variables.layouts import layout_of, mesh_of, stage_of, within_optimizer
from keras_par.plan.layout import Axes
from keras_par.plan.options import Options
from keras_par.plan.placement import Placement, alike, in_parts
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.variable_views import placement_of

EMBEDDINGS = ("Embedding", "ReversibleEmbedding")  # whose tables have gradients of single rows

# How the slot that is being made lies.
_slot: ContextVar[tuple[Placement, RankMesh] | None] = ContextVar("keras_par_slot", default=None)


@contextlib.contextmanager
def beside(variable: Any, axes: Axes) -> Iterator[None]:
    """Within it the variable that is made lies so on the mesh of `variable`."""
    token = _slot.set((alike(axes, placement_of(variable).data_axis), variable.mesh))
    try:
        yield
    finally:
        _slot.reset(token)


def division_of(variable: Any, strategy: Any, shape) -> tuple[Placement, RankMesh] | None:
    """How a variable that is being made is divided, None if every rank holds all of it.

    Raises:
        ValueError: its layout does not fit its shape.
    """
    if not world.is_started() or world.current().size == 1:
        return None
    if (slot := _slot.get()) is not None:
        return slot if any(slot[0].stored) else None
    found, mesh = layout_of(variable, strategy, shape), mesh_of(strategy)
    if stage_of(strategy) < 3 or mesh is None or within_optimizer() or is_table(layer_under_way()):
        return found
    placement = over_rows(variable, shape, found[0].stored if found else (), mesh, strategy.keras_par_options)
    return found if placement is None else (placement, mesh)


def over_rows(
    variable: keras.Variable, shape, stored: Axes, mesh: RankMesh, options: Options, by_elements: bool = True
) -> Placement | None:
    """How a variable lies of which ranks with other rows divide what the strategy's stage of ZeRO says.

    None if they divide nothing of it, because it is small, or neither trained nor, in the third stage, quantized.

    Args:
        variable: may be being made.
        shape: its shape.
        stored: what its layout divides.
        mesh: of the strategy.
        options: the strategy's, with a stage.
        by_elements: False if its optimizer looks beyond single elements.
    """
    assert mesh.batch_axis is not None and options.zero
    num_parts, dtype = mesh.size(mesh.batch_axis), tf.as_dtype(variable.dtype)
    is_divisible = variable.trainable if dtype.is_floating else options.zero == 3 and dtype.size == 1
    if num_parts == 1 or mesh.batch_axis in stored or not is_divisible:
        return None
    local = mesh.local_shape(shape, stored) if stored else shape
    if math.prod(local) * dtype.size < options.zero_min_kb * 2**10 or is_range(variable):
        return None
    return in_parts(tuple(shape), stored, mesh.batch_axis, num_parts, options.zero, by_elements)


def is_range(variable: keras.Variable) -> bool:
    """True for the ranges of float8, which take their gradients as values; Keras marks them once they are made."""
    return getattr(variable, "overwrite_with_gradient", False) or variable.name.endswith("_amax_history")


def is_table(layer: Any) -> bool:
    """True for a layer whose table has gradients of single rows."""
    return any(kind.__name__ in EMBEDDINGS for kind in type(layer).__mro__)


def layer_under_way() -> Any:
    """What is being built or called, None outside of it."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return stack[-1].caller if stack else None
