"""Computes on shards whatever can be said by naming dims, as `plan.division` has it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_par.plan.division import Division, Label, Labels, Move, divide, sums
from keras_par.sharding.collectives import enter, gather, gather_and_enter, scatter, split, total
from keras_par.sharding.following import keeps_divided, note_cut
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.on_use import Deferred, GatheredOnUse, applied
from keras_par.sharding.shared import once
from keras_par.sharding.tensor import ShardedTensor


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
    mesh.described(operands, labels, result, undivided)
    layouts = [operand.axes if isinstance(operand, ShardedTensor) else None for operand in operands]
    division = divide(layouts, labels, result, undivided)
    is_product = len(operands) > 1
    sums_over = {name for names in labels for name in names} - set(result)
    defers = is_product and bool(sums_over)  # else gradients need no weights
    given = zip(operands, labels, division.operands, strict=True)
    parts = [part_of(operand, names, moves, division, mesh, defers) for operand, names, moves in given]
    value = applied(local, parts)
    sizes = value.shape.as_list()
    moves, axes = sums(
        division, result, lambda axes, axis: is_product and keeps_divided(sizes, list(axes), mesh.size(axis))
    )
    for move in moves:
        value = moved(value, move, mesh)
    return ShardedTensor(value, axes, mesh) if any(axes) else value


def part_of(
    operand: Any, names: Labels, moves: Sequence[Move], division: Division, mesh: RankMesh, defers: bool
) -> Any:
    """This rank's part of an operand, as the division needs it; with `defers` a weight is gathered on use."""
    if defers and isinstance(operand, GatheredOnUse):
        return Deferred(operand, functools.partial(changed, moves=moves, mesh=mesh))
    if isinstance(operand, ShardedTensor):
        tensor = operand.local
    elif operand is None or (not names and not tf.is_tensor(operand)):
        return operand
    else:
        if division.is_cut(names):
            note_cut(operand, division.cut(names))
        tensor = tf.convert_to_tensor(operand)
    return changed(tensor, moves, mesh)


def changed(tensor: tf.Tensor, moves: Sequence[Move], mesh: RankMesh) -> tf.Tensor:
    """A tensor after some steps."""
    for move in moves:
        tensor = moved(tensor, move, mesh)
    return tensor


def moved(tensor: tf.Tensor, move: Move, mesh: RankMesh) -> tf.Tensor:
    """A tensor after one step along an axis; one of whole numbers has no gradient to be summed."""
    group = mesh.along(move.axis)
    if move.kind == "total":
        return total(tensor, group)
    if move.kind == "enter":
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor
        return once(tensor, f"entered {move.axis}", functools.partial(enter, tensor, group))
    assert move.dim is not None
    change = {"gather": gather, "gather_and_enter": gather_and_enter, "split": split, "scatter": scatter}[move.kind]
    return change(tensor, move.dim, group)
