"""Finds the layout that a strategy has for a variable or for a layer's output, and says what is wrong with it."""

import functools
import logging
import math
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.distribution import distribution_lib

from keras_par.comm import world
from keras_par.comm.agreed import AgreedValueError
from keras_par.keras_patches.variables import operations
from keras_par.plan.layout import Axes, complaint, divided, matches, nearest, unmatched
from keras_par.plan.mesh import BATCH, Mesh
from keras_par.plan.options import OF_A_HOST, Options, ReduceBy
from keras_par.plan.placement import Placement, alike
from keras_par.sharding import step as steps
from keras_par.sharding.collectives import split
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.tensor import ShardedTensor

SEEN_PATHS = "_keras_par_paths"  # of the variables made under a strategy
ATTENTION = ("MultiHeadAttention", "GroupedQueryAttention")
logger = logging.getLogger("keras_par")


def data_layout(original):
    """Outside of steps data stays whole on each rank, as for KerasHub's `generate`; `fit` cuts batches by itself."""

    def replacement(self, data_shape):
        layout = original(self, data_shape)
        if not world.is_started() or world.current().size == 1:
            return layout
        return distribution_lib.TensorLayout([None] * len(layout.axes), layout.device_mesh)

    return replacement


def rank_mesh(
    device_mesh: distribution_lib.DeviceMesh, batch_axis: str | None = None, options: Options | None = None
) -> RankMesh:
    """The mesh of ranks that Keras's mesh of devices means to a strategy; several may use one mesh of devices.

    Args:
        device_mesh: Keras's.
        batch_axis: the strategy's, None outside of any.
        options: the strategy's, None outside of any.

    Raises:
        ValueError: it does not hold each rank once, or not in ascending order along each axis, or `zero_ranks` does not
            divide its batch axis.
    """
    operations.install()  # or else what this mesh divides would be gathered by each operation
    ranks = tuple(int(str(device).rsplit(":", 1)[-1]) for device in device_mesh.devices.flatten())
    num_ranks = world.current().size
    if len(ranks) != num_ranks:
        raise ValueError(
            f"keras-par: the mesh of shape {tuple(device_mesh.shape)} has {len(ranks)} device(s) but the job has "
            f"{num_ranks} rank(s): give it a shape of {num_ranks} devices, or start {len(ranks)} ranks."
        )
    return mesh_with(Mesh(tuple(device_mesh.shape), tuple(device_mesh.axis_names), ranks), batch_axis, options)


def mesh_with(plan: Mesh, batch_axis: str | None, options: Options | None) -> RankMesh:
    """The mesh of a strategy with these options."""
    options = options or Options()
    if not options.zero or options.zero_ranks is None or batch_axis is None:
        return made(plan, batch_axis, options.reduce_by, None)
    if options.zero_ranks == OF_A_HOST:
        stride = math.prod(plan.shape[plan.axis_names.index(batch_axis) + 1 :])
        num_parts = largest_divisor(plan.size(batch_axis), world.current().local_size // stride)
    else:
        num_parts = int(options.zero_ranks)
    return made(plan, batch_axis, options.reduce_by, num_parts)


@functools.cache
def made(plan: Mesh, batch_axis: str | None, reduce_by: ReduceBy, num_parts: int | None) -> RankMesh:
    return RankMesh(plan, batch_axis, reduce_by, num_parts)


def largest_divisor(number: int, most: int) -> int:
    """Of a number, that is at most so much; at least 1."""
    return next((each for each in range(most, 1, -1) if number % each == 0), 1)


def mesh_of(strategy: Any) -> RankMesh | None:
    """The mesh over which a strategy may divide variables, None if each rank stores all of them."""
    if not isinstance(strategy, distribution_lib.ModelParallel) and stage_of(strategy) < 3:
        return None
    return rank_mesh(strategy.device_mesh, strategy.batch_dim_name, getattr(strategy, "keras_par_options", None))


def stage_of(strategy: Any) -> int:
    """The stage of ZeRO that a strategy has, 0 for none."""
    options = getattr(strategy, "keras_par_options", None)
    return options.zero if options else 0


def mesh_of_rows(strategy: Any) -> RankMesh:
    """The mesh of a strategy, which is a row of all ranks in data parallel."""
    ranks = tuple(range(world.current().size))
    in_a_row = Mesh((len(ranks),), (BATCH,), ranks)
    return mesh_of(strategy) or mesh_with(in_a_row, BATCH, getattr(strategy, "keras_par_options", None))


def data_place() -> tuple[int, int]:
    """How many places there are with other rows, and which is this rank's, under the strategy that is active."""
    mesh = mesh_of(distribution_lib.distribution())
    if mesh is None or mesh.batch_axis is None:
        return world.current().size, world.current().rank
    return mesh.num_places, mesh.place


def layout_of(variable: Any, strategy: Any, shape) -> tuple[Placement, RankMesh] | None:
    """How a variable that is being made is divided by its own layout or the layout map's, None if it is not.

    Raises:
        ValueError: its layout does not fit its shape.
    """
    if not world.is_started() or world.current().size == 1:
        return None
    layout = getattr(variable, "_layout", None)  # Keras 3.14 gives it to variables of other backends only
    mesh = mesh_of(strategy)
    if layout is None and mesh is not None and not within_optimizer():
        vars(strategy).setdefault(SEEN_PATHS, {})[variable.path] = None
        layout = strategy._layout_map[variable.path]
    if layout is None or not any(layout.axes):
        return None
    mesh = mesh or rank_mesh(layout.device_mesh)
    if mesh.batch_axis is None:
        raise ValueError(
            f"keras-par: variable '{variable.path}' has the layout {tuple(layout.axes)} of its own, but no strategy "
            "divides variables: make it in the scope of a kp.ModelParallel."
        )
    axes = layout.axes
    wrong = complaint(tuple(shape), axes, mesh.plan)
    is_packed = tf.as_dtype(variable.dtype).is_integer  # by Model.quantize: not of the shape that the pattern is for
    may_be_whole = within_attention() or is_replicable(strategy, variable.path)
    if wrong and (is_packed or ("divisible" in wrong and may_be_whole)):
        logger.warning("keras-par: '%s' is not divided, because %s", variable.path, wrong)
        return None
    if wrong:
        raise ValueError(
            f"keras-par: variable '{variable.path}' of shape {tuple(shape)} cannot have the layout {tuple(axes)}: "
            f"{wrong}: change the layout map's pattern for it, the mesh, or the model."
        )
    axes = divided(axes, mesh.plan)
    if not any(axes):
        return None
    variable._layout = layout
    return alike(axes, mesh.batch_axis), mesh


def is_replicable(strategy: Any, path: str) -> bool:
    """True if the strategy would rather have a variable whole than refuse one that its axes do not divide evenly."""
    return any(matches(pattern, path) for pattern in getattr(strategy, "replicable_patterns", ()))


def said_by(strategy: Any, path: str) -> str | None:
    """The pattern of a strategy's layout map that is for a path, None if there is none."""
    patterns = () if mesh_of(strategy) is None else tuple(strategy._layout_map)
    return next((pattern for pattern in patterns if matches(pattern, path)), None)


def path_of(layer: Any) -> str:
    """The path of a layer, also of one that Keras gives none, because it builds nothing."""
    return layer.path or "/".join(filter(None, (getattr(layer, "_parent_path", None), layer.name)))


def within_optimizer() -> bool:
    """True while an optimizer makes its state, which has the layouts of the variables it is for."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return any(isinstance(scope.caller, keras.optimizers.Optimizer) for scope in stack)


def within_attention() -> bool:
    """True while an attention layer of Keras's builds its parts."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return any(kind.__name__ in ATTENTION for scope in stack for kind in type(scope.caller).__mro__)


def require_matches(strategy: Any, layer_paths: list[str]) -> None:
    """Refuses a layout map that has a pattern for nothing.

    Raises:
        ValueError: a pattern is neither a variable's made under the strategy nor a layer's output.
    """
    if mesh_of(strategy) is None:
        return
    paths = [*getattr(strategy, SEEN_PATHS, {}), *(f"{path}/output" for path in layer_paths)]
    optional = getattr(strategy, "optional_patterns", ())
    without = unmatched(strategy._layout_map, paths)
    missing = without if len(without) == len(strategy._layout_map) else [p for p in without if p not in optional]
    if missing:
        alike = ", ".join(f"'{path}'" for path in nearest(missing[0], dict.fromkeys(paths)))
        raise AgreedValueError(
            f"keras-par: the layout map's pattern '{missing[0]}' matches no variable and no layer's output; nearest "
            f"are {alike}: correct it, or leave it out."
        )


def distribute_tensor(tensor: Any, layout: Any) -> Any:
    """A tensor that is alike on all ranks, or sharded, with the layout's division; costs at most one all-gather a dim.

    Within a training step rows are divided already, so that the batch axis at dim 0 changes nothing. Where a model is
    built from symbols nothing does.

    Raises:
        ValueError: the layout does not fit the tensor's shape, or would divide rows of a step in another way.
    """
    is_unsaid = layout.device_mesh is None or len(layout.axes) == 0
    if in_symbolic_scope() or is_unsaid or not world.is_started() or world.current().size == 1:
        return tensor
    step = steps.current()
    strategy = distribution_lib.distribution() if step is None else step.binding.strategy
    is_strategys = getattr(strategy, "device_mesh", None) is layout.device_mesh
    mesh = (mesh_of(strategy) if is_strategys else None) or rank_mesh(layout.device_mesh)
    axes = list(layout.axes)
    batch_axis = None if step is None else strategy.batch_dim_name
    if step is not None and axes and axes[0] == batch_axis:
        axes[0] = None
    if not hasattr(tensor, "shape"):
        raise ValueError(
            f"keras-par: the layout {tuple(layout.axes)} is for one tensor, but the layer's output is a "
            f"{type(tensor).__name__} of several: leave out the pattern for its output, or divide them by "
            "keras.distribution.distribute_tensor."
        )
    sizes = [0 if size is None else size for size in tensor.shape]  # which any number divides
    wrong = complaint(sizes, axes, mesh.plan)
    if wrong is None and any(axis and size is None for size, axis in zip(tensor.shape, axes, strict=True)):
        wrong = "it divides a dim of unknown size"
    if wrong is None and step is not None and batch_axis in axes:
        wrong = f"the ranks along '{batch_axis}' have other rows, so that it can divide dim 0 only"
    if wrong:
        raise ValueError(
            f"keras-par: a tensor of shape {tuple(tensor.shape)} cannot have the layout {tuple(layout.axes)}: {wrong}: "
            "change the layout."
        )
    return divide(tensor, divided(axes, mesh.plan), mesh)


def divide(tensor: Any, axes: Axes, mesh: RankMesh) -> Any:
    """The tensor with this division."""
    if isinstance(tensor, ShardedTensor):
        if tensor.axes == axes:
            return tensor
        tensor = tensor.whole()
    if not any(axes):
        return tensor
    shard = tf.convert_to_tensor(tensor)
    for dim, axis in enumerate(axes):
        if axis is not None:
            shard = split(shard, dim, mesh.along(axis))
    return ShardedTensor(shard, axes, mesh)
