"""Computes on shards whatever can be said by naming dims, as `plan.division` has it."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from keras_par.plan.division import Division, Labels, Move, Named, divide, sums
from keras_par.plan.layout import Axes
from keras_par.sharding.collectives import changed
from keras_par.sharding.gather_on_use import Deferred, GatheredOnUse, applied
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.tensor import ShardedTensor

Cuts = dict[int, tuple[Any, list[Axes]]]  # by id: an operand, and how it was cut each time

_keeps: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_par_keeps", default=False)
_cuts: contextvars.ContextVar[Cuts | None] = contextvars.ContextVar("keras_par_cuts", default=None)


@contextlib.contextmanager
def keeping(keeps: bool) -> Iterator[None]:
    """Within it a product that sums over a divided dim leaves its result divided, along its last dim where it can."""
    token = _keeps.set(keeps)
    try:
        yield
    finally:
        _keeps.reset(token)


def keeps_divided(sizes: list[int | None], axes: list[str | None], num_ranks: int) -> bool:
    """True if a sum of these sizes is to be divided along its last dim."""
    last = sizes[-1] if len(sizes) > 1 and axes[-1] is None else None
    return _keeps.get() and last is not None and last % num_ranks == 0


@contextlib.contextmanager
def cuts_noted() -> Iterator[Cuts]:
    """Notes which operands, alike on all ranks, operations on shards take a part of."""
    found: Cuts = {}
    token = _cuts.set(found)
    try:
        yield found
    finally:
        _cuts.reset(token)


def note_cut(operand: Any, axes: Axes) -> None:
    """Notes that an operation takes these parts of an operand."""
    noted = _cuts.get()
    if noted is not None:
        noted.setdefault(id(operand), (operand, []))[1].append(axes)


def compute(
    local: Callable[..., Any],
    operands: Sequence[Any],
    labels: Sequence[Labels],
    result: Labels,
    otherwise: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """`local(*operands)` where at least one operand is a ShardedTensor.

    Args:
        local: a function of shards, which makes a tensor or several alike; linear in each divided dim that the result
            lacks, unless these are combined in another way.
        operands: tensors, sharded or alike on all ranks, numbers or None.
        labels: for each operand the names of its dims; of numbers none.
        result: the names of the result's dims.
        otherwise: what makes the result of the operands where a dim is divided that must be whole, by other operations
            that have rules; None if such dims are gathered.
        options: `undivided`, `lengths` and `combine`, as `Named` has them.

    Returns:
        A ShardedTensor if a dim of the result is divided, else a tensor.

    Costs what changes of layout cost where operands do not fit together, and one all-reduce of the result for each
    axis that divides a dim which the result lacks, or a reduce-scatter where `keeping` leaves it
    divided. Backward it costs one all-reduce for each operand that is alike on all ranks and lacks a divided dim.
    """
    named = Named(tuple(map(tuple, labels)), tuple(result), **options)
    mesh = next(operand.mesh for operand in operands if isinstance(operand, ShardedTensor))
    return mesh.computed(operands, named, otherwise, lambda: computed(local, operands, named, otherwise, mesh))


def computed(
    local: Callable[..., Any],
    operands: Sequence[Any],
    named: Named,
    otherwise: Callable[..., Any] | None,
    mesh: RankMesh,
) -> Any:
    """See `compute`."""
    layouts = [operand.axes if isinstance(operand, ShardedTensor) else None for operand in operands]
    division = divide(named, layouts, mesh.size)
    if otherwise is not None and not division.is_as_named:
        return otherwise(*operands)
    is_product = len(operands) > 1
    sums_over = {name for names in named.operands for name in names} - set(named.result)
    defers = is_product and bool(sums_over)  # else gradients need no weights
    given = zip(operands, named.operands, division.operands, strict=True)
    found = applied(local, [part_of(operand, names, moves, division, mesh, defers) for operand, names, moves in given])

    def shard(value: tf.Tensor) -> Any:
        sizes = value.shape.as_list()
        moves, axes = sums(
            named, division, lambda axes, axis: is_product and keeps_divided(sizes, list(axes), mesh.size(axis))
        )
        value = changed(value, moves, mesh.along)
        return ShardedTensor(value, axes, mesh) if any(axes) else value

    return type(found)(map(shard, found)) if isinstance(found, (list, tuple)) else shard(found)


def part_of(
    operand: Any, names: Labels, moves: Sequence[Move], division: Division, mesh: RankMesh, defers: bool
) -> Any:
    """This rank's part of an operand, as the division needs it; with `defers` a weight is gathered on use."""
    if defers and isinstance(operand, GatheredOnUse):
        return Deferred(operand, functools.partial(changed, moves=moves, group_of=mesh.along))
    if isinstance(operand, ShardedTensor):
        return operand.part(moves)
    if operand is None or (not names and not tf.is_tensor(operand)):
        return operand
    if division.is_cut(names):
        note_cut(operand, division.cut(names))
    return changed(tf.convert_to_tensor(operand), moves, mesh.along)


def dim_of(axis: int, ndim: int) -> int:
    """The dim, from 0, that an argument means for a tensor of `ndim` dims; raises ValueError if there is none."""
    if not -ndim <= axis < ndim:
        raise ValueError(
            f"keras-par: axis {axis} is out of bounds of a divided tensor, which has {ndim} dim(s) here: give one from "
            f"{-ndim} to {ndim - 1}."
        )
    return axis % ndim
