"""Gives ranks that compute the same gradient, each for itself, the first one's: GPUs do not give all the same bits."""

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from keras_par.comm.reducer import Gradient, values_of, with_values
from keras_par.plan.mesh import REPLICA
from keras_par.sharding.collective_names import numbered
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.variable_views import identity, is_sharded


def repeats_bits() -> bool:
    """True if the same computation has the same bits on all ranks, as on processors of one kind.

    GPUs add up in no order, and TensorFlow measures on each which kernel is the fastest.
    """
    return not tf.config.list_logical_devices("GPU")


def of_first(
    mesh: RankMesh | None, gradients: Sequence[Gradient], variables: Sequence[Any], but: Collection[int] = ()
) -> list[Gradient]:
    """Gradients of variables of which ranks along an axis of the mesh hold copies: on all of them the first rank's.

    The ranks with other rows have the same ones already. Costs one broadcast of these gradients for each of the other
    axes where ranks do not repeat bits, else nothing.

    Args:
        mesh: of the strategy, None in data parallel.
        gradients: None, tensors or slices, of the whole batch.
        variables: that they are of.
        but: `identity`s of those that have the first rank's already.
    """
    result = list(gradients)
    if mesh is None or repeats_bits():
        return result
    for axis in mesh.plan.axis_names:
        if axis in (mesh.batch_axis, REPLICA):
            continue
        rest = [i for i, variable in enumerate(variables) if result[i] is not None and identity(variable) not in but]
        copies = [i for i in rest if axis not in axes_of(variables[i])]
        own = [values_of(result[i]) for i in copies]
        firsts = mesh.along(axis).broadcast(own, numbered("copies")) if own else []
        for i, first in zip(copies, firsts, strict=True):
            result[i] = with_values(result[i], first)
    return result


def share(mesh: RankMesh | None, variables: Sequence[Any]) -> None:
    """Gives variables what they are on the first of the ranks that hold copies, at the cost of `of_first`.

    Args:
        mesh: of the strategy, None in data parallel.
        variables: the same on ranks with other rows.
    """
    if mesh is None or repeats_bits():
        return
    own = [tf.convert_to_tensor(variable.value) for variable in variables]
    for variable, value in zip(variables, of_first(mesh, own, variables), strict=True):
        variable.assign(value)


def axes_of(variable: Any) -> tuple:
    return variable.axes if is_sharded(variable) else ()
