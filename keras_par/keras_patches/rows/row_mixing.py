"""Finds operations of a step that bring rows of the batch together, of which each rank has its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from keras_par.comm.call_site import is_of_user
from keras_par.keras_patches.rows.batch_rows import BatchRows
from keras_par.keras_patches.rows.row_dims import ALIKE, RowDims, Rows, axes_of, constant, indexed

INNER = ("_true_graph", "_false_graph", "_body_graph")  # where TensorFlow keeps the graphs of branches and loops


class Mixing(NamedTuple):
    """What an operation does with rows, and the line of the user's code that asked for it, if one did."""

    does: str
    line: str


def mixing(rows: BatchRows) -> Mixing | None:
    """The first operation in the graph of a step that orders rows anew or computes one of several."""
    if rows.graph is None:
        return None
    for op in operations(rows.graph):
        does, mixes = MIXING.get(op.type, ("", None))
        if mixes is not None and mixes(rows.dims, op):
            return Mixing(does, line_of(op))
    return None


def operations(graph: Any) -> Iterator[tf.Operation]:
    """Those of a graph, and of the branches and loops in it."""
    for op in graph.get_operations():
        yield op
        for name in INNER:
            inner = getattr(op, name, None)
            if inner is not None:
                yield from operations(inner)


def line_of(op: tf.Operation) -> str:
    frames = [frame for frame in op.traceback or () if is_of_user(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def along(source: int | str | None) -> Callable[[RowDims, tf.Operation], bool]:
    """Mixes rows if they lie in one of the dims that an input or an attribute tells, or in the last one."""

    def mixes(dims: RowDims, op: tf.Operation) -> bool:
        known, rank = dims.of(op.inputs[0]), op.inputs[0].shape.rank or 0
        axes = [rank - 1] if source is None else axes_of(op, source, rank) or ()
        return isinstance(known, Rows) and known.dim in axes

    return mixes


def reverses(dims: RowDims, op: tf.Operation) -> bool:
    known = dims.of(op.inputs[0])
    result = indexed(op, op.inputs[0].shape.rank, known.dim) if isinstance(known, Rows) else None
    return result is not None and min(result.strides, default=0) < 0


def gathers(dims: RowDims, op: tf.Operation) -> bool:
    """Looks rows up by what depends on the batch, or by as many numbers; what a mask chooses stays in its order."""
    values, indices, axis = op.inputs
    known, place = dims.of(values), constant(axis)
    if not isinstance(known, Rows) or place is None or op.get_attr("batch_dims") or not indices.shape.rank:
        return False
    is_along = int(place) % (values.shape.rank or 1) == known.dim
    are_as_many = indices.shape[0] == values.shape[known.dim]
    is_order = dims.of(indices) is not ALIKE or are_as_many
    return is_along and is_order and not comes_of(indices, ("Where", "RandomShuffle"))


def comes_of(tensor: tf.Tensor, kinds: tuple[str, ...]) -> bool:
    """True if a vector of indices was made by one of these operations, and moved since."""
    while tensor.op.type in ("Squeeze", "Cast", "Reshape", "Identity", "ExpandDims", "StridedSlice"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type in kinds


def pairs_all(dims: RowDims, op: tf.Operation) -> bool:
    """A product of rows with rows, as of similarities; sums over rows, as in a gradient, are none."""
    found = [dims.of(each) for each in op.inputs]
    if not all(isinstance(known, Rows) and known.is_exact for known in found):
        return False
    kept = (1 if op.get_attr("transpose_a") else 0, 0 if op.get_attr("transpose_b") else 1)
    return tuple(known.dim for known in found if isinstance(known, Rows)) == kept


MIXING: dict[str, tuple[str, Callable[[RowDims, tf.Operation], bool]]] = {
    "ReverseV2": ("reverses", reverses),
    "ReverseSequence": ("reverses", along("seq_dim")),
    "StridedSlice": ("reverses", reverses),
    "Roll": ("rolls", along(2)),
    "Cumsum": ("adds up, one after another,", along(1)),
    "Cumprod": ("multiplies, one after another,", along(1)),
    "CumulativeLogsumexp": ("adds up, one after another,", along(1)),
    "TopKV2": ("sorts", along(None)),
    "GatherV2": ("orders anew", gathers),
    "MatMul": ("compares with each other", pairs_all),
}
