"""Computes on shards whatever can be said by naming dims: which dims of the operands belong together.

Dims are named as in an einsum. A dim may be divided if all operands that have it are divided alike, or can be; one that
the result lacks is summed over, so that its shards add up.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import tensorflow as tf

from keras_par.sharding.collectives import enter, gather, gather_and_enter, scatter, split, total
from keras_par.sharding.following import keeps_divided, note_cut
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.shared import once
from keras_par.sharding.tensor import ShardedTensor

# The name of a dim; None is one that all others may be broadcast to.
Label = Hashable
Labels = Sequence[Label | None]


def compute(
    local: Callable[..., tf.Tensor],
    operands: Sequence[Any],
    labels: Sequence[Labels],
    result: Labels,
    undivided: Sequence[Label] = (),
) -> Any:
    """`local(*operands)` where at least one operand is a ShardedTensor.

    Args:
        local: a function of shards; linear in each divided dim that the result lacks.
        operands: tensors, sharded or alike on all ranks, numbers or None.
        labels: for each operand the names of its dims; of numbers none.
        result: the names of the result's dims.
        undivided: names of dims that must be whole, such as those a softmax is taken over.

    Returns:
        A ShardedTensor if a dim of the result is divided, else a tensor.

    Costs what changes of layout cost where operands do not fit together, and one all-reduce of the result for each
    axis that divides a dim which the result lacks, or a reduce-scatter where `following.keeping` leaves it divided.
    Backward it costs one all-reduce for each operand that is alike on all ranks and lacks a divided dim.
    """
    mesh = next(operand.mesh for operand in operands if isinstance(operand, ShardedTensor))
    axis_of = agree(operands, labels, undivided)
    fitted = [fit(operand, names, axis_of, mesh) for operand, names in zip(operands, labels, strict=True)]
    value = local(*fitted)
    axes = [None if name is None else axis_of.get(name) for name in result]
    is_product = len(operands) > 1
    for name, axis in axis_of.items():
        if name in result:
            continue
        if is_product and keeps_divided(value.shape.as_list(), axes, mesh.size(axis)):
            value, axes[-1] = scatter(value, len(axes) - 1, mesh.along(axis)), axis
        else:
            value = total(value, mesh.along(axis))
    return ShardedTensor(value, tuple(axes), mesh) if any(axes) else value


def agree(operands: Sequence[Any], labels: Sequence[Labels], undivided: Sequence[Label]) -> dict[Label, str]:
    """Which axis divides which dim: each divides one at most, preferably where most operands are divided so.

    Among equals the last operand, which has the weights as a rule, stays as it is.
    """
    votes: dict[tuple[Label, str], tuple[int, int]] = {}
    for place, (operand, names) in enumerate(zip(operands, labels, strict=True)):
        if isinstance(operand, ShardedTensor):
            for name, axis in zip(names, operand.axes, strict=True):
                if axis is not None and name is not None and name not in undivided:
                    votes[name, axis] = (votes.get((name, axis), (0, 0))[0] + 1, place)
    chosen: dict[Label, str] = {}
    for (name, axis), _ in sorted(votes.items(), key=lambda item: item[1], reverse=True):
        if name not in chosen and axis not in chosen.values():
            chosen[name] = axis
    return chosen


def fit(operand: Any, names: Labels, axis_of: dict[Label, str], mesh: RankMesh) -> Any:
    """This rank's part of an operand, as the chosen division needs it."""
    if not isinstance(operand, ShardedTensor):
        if operand is None or (not names and not tf.is_tensor(operand)):
            return operand
        if any(name in axis_of for name in names):
            note_cut(operand, tuple(axis_of.get(name) for name in names))
        operand = tf.convert_to_tensor(operand)
        tensor, axes = operand, cast(list[str | None], [None] * len(names))
    else:
        tensor, axes = operand.local, list(operand.axes)
    lacking = [axis for name, axis in axis_of.items() if name not in names]
    for dim, (name, axis) in enumerate(zip(names, axes, strict=True)):
        if axis is not None and axis_of.get(name) != axis:
            if axis in lacking:
                tensor = gather_and_enter(tensor, dim, mesh.along(axis))
                lacking.remove(axis)
            else:
                tensor = gather(tensor, dim, mesh.along(axis))
            axes[dim] = None
    for axis in lacking:
        if tensor.dtype.is_floating or tensor.dtype.is_complex:
            tensor = once(tensor, f"entered {axis}", functools.partial(enter, tensor, mesh.along(axis)))
    for dim, name in enumerate(names):
        if name in axis_of and axes[dim] is None:
            tensor = split(tensor, dim, mesh.along(axis_of[name]))
    return tensor
