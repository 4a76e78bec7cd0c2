"""For each operation of TensorFlow's that moves, joins or loses dims, what becomes of the batch's rows."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_par.keras_patches.rows.row_dims import (
    ALIKE,
    OTHER,
    RULES,
    UNSURE,
    Known,
    RowDims,
    Rows,
    constant,
    inherited,
    scaled,
)

Inputs = list[tuple[tf.Tensor, Known]]
Rule = Callable[[RowDims, tf.Tensor, Inputs], Known]


def moving(new_dim: Callable[[Any, int], int | None], place: int = 0) -> Rule:
    """A rule for operations that take rows along from one input.

    Args:
        new_dim: tells from the operation and the dim where rows are in which dim they come to be; None if in none,
            -1 if that is not known while tracing.
        place: of the input.
    """

    def rule(dims, tensor, inputs):
        known = inputs[place][1]
        if not isinstance(known, Rows):
            return known
        dim = new_dim(tensor.op, known.dim)
        return OTHER if dim is None else UNSURE if dim < 0 else known.at(dim)

    return rule


def only(*places: int) -> Rule:
    """A rule for operations whose dims are those of some of their inputs."""
    return lambda dims, tensor, inputs: inherited(tensor, [inputs[place] for place in places])


def unfollowed(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """What comes of operations whose dims depend on values."""
    return ALIKE if all(known is ALIKE for _, known in inputs) else UNSURE


def transposed(op: Any, dim: int) -> int | None:
    order = constant(op.inputs[1])
    return -1 if order is None else list(order).index(dim)


def reduced(op: Any, dim: int) -> int | None:
    axes = axes_of(op.inputs[1], op.inputs[0].shape.rank)
    if axes is None:
        return -1
    kept = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
    return None if dim in axes else dim if kept else dim - sum(axis < dim for axis in axes)


def reversed_rows(op: Any, dim: int) -> int | None:
    axes = axes_of(op.inputs[1], op.inputs[0].shape.rank)
    return -1 if axes is None else None if dim in axes else dim


def expanded(op: Any, dim: int) -> int | None:
    axes = axes_of(op.inputs[1], op.outputs[0].shape.rank)
    return -1 if axes is None else dim + (axes[0] <= dim)


def squeezed(op: Any, dim: int) -> int | None:
    rank = op.inputs[0].shape.rank
    if rank is None:
        return -1
    gone = [axis % rank for axis in op.get_attr("squeeze_dims")]
    gone = gone or [axis for axis, size in enumerate(op.inputs[0].shape) if size == 1]
    return None if dim in gone else dim - sum(axis < dim for axis in gone)


def unpacked(op: Any, dim: int) -> int | None:
    axis = op.get_attr("axis") % (op.inputs[0].shape.rank or 1)
    return None if axis == dim else dim - (axis < dim)


def sliced(op: Any, dim: int) -> int | None:
    """Rows that are not all taken are lost."""
    bits = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    strides = constant(op.inputs[3])
    if strides is None or op.inputs[0].shape.rank is None:
        return -1
    entries = len(strides)
    given = entries - bin(bits["new_axis"] | bits["ellipsis"]).count("1")
    at, result = 0, 0
    for entry in range(entries):
        bit = 1 << entry
        if bits["ellipsis"] & bit:
            passed = op.inputs[0].shape.rank - given
            if dim < at + passed:
                return result + dim - at
            at, result = at + passed, result + passed
        elif bits["new_axis"] & bit:
            result += 1
        elif at == dim:
            whole = bits["begin"] & bit and bits["end"] & bit and strides[entry] == 1
            return result if whole and not bits["shrink_axis"] & bit else None
        else:
            at, result = at + 1, result + (not bits["shrink_axis"] & bit)
    return result + dim - at


def stride_at(op: Any, dim: int) -> int:
    """The stride of a slice in one dim, 1 if it is not known."""
    strides, rank = constant(op.inputs[3]), op.inputs[0].shape.rank
    if strides is None or rank is None:
        return 1
    new, ellipsis = op.get_attr("new_axis_mask"), op.get_attr("ellipsis_mask")
    given = len(strides) - bin(new | ellipsis).count("1")
    at = 0
    for entry in range(len(strides)):
        bit = 1 << entry
        if new & bit:
            continue
        size = rank - given if ellipsis & bit else 1
        if at <= dim < at + size:
            return 1 if ellipsis & bit else int(strides[entry])
        at += size
    return 1


def padded(op: Any, dim: int) -> int | None:
    pads = constant(op.inputs[1])
    return -1 if pads is None else None if pads[dim].any() else dim


def split(op: Any, dim: int) -> int | None:
    [axis] = axes_of(op.inputs[0 if op.type == "Split" else 2], op.outputs[0].shape.rank) or [dim]
    return None if axis == dim else dim


def axes_of(tensor: tf.Tensor, rank: int | None) -> list[int] | None:
    """The dims that an operation's input says, None if only running tells."""
    value = constant(tensor)
    return None if value is None or not rank else [int(axis) % rank for axis in value.reshape(-1)]


def multiplied(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """Rows of a matrix product are those of the first matrix, or of any dim before the matrices'."""
    name = "adj_x" if "adj_x" in tensor.op.node_def.attr else "transpose_a"
    rank = tensor.shape.rank
    if rank == 2:
        known = inputs[0][1]
        if not isinstance(known, Rows):
            return inherited(tensor, [inputs[0], (inputs[1][0], OTHER if inputs[1][1] is not ALIKE else ALIKE)])
        return known.at(0) if known.dim == (1 if tensor.op.get_attr(name) else 0) else OTHER
    return inherited(tensor, inputs)


def packed(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    known = next((known for _, known in inputs if isinstance(known, Rows)), None)
    if known is None or tensor.shape.rank is None:
        return unfollowed(dims, tensor, inputs)
    axis = tensor.op.get_attr("axis") % tensor.shape.rank
    return known.at(known.dim + (axis <= known.dim))


def reshaped(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    value, known = inputs[0]
    if not isinstance(known, Rows):
        return known
    before, after = value.shape, tensor.shape
    if known.dim or before.rank is None or after.rank is None:
        return UNSURE
    if not after.rank:
        return OTHER
    sizes = [shape[1:].num_elements() for shape in (before, after)]
    return scaled(known, *sizes) if all(sizes) else known._replace(is_exact=False)


def concatenated(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    *parts, (axis, _) = inputs
    value = constant(axis)
    if value is None or tensor.shape.rank is None:
        return unfollowed(dims, tensor, inputs)
    joined = int(value) % tensor.shape.rank
    if all(isinstance(known, Rows) and known.dim == joined and known.is_exact for _, known in parts):
        return Rows(tuple(run for _, known in parts for run in known.runs), joined)  # type: ignore[union-attr]
    if any(isinstance(known, Rows) and known.dim == joined for _, known in parts):
        return UNSURE
    return inherited(tensor, parts)


def tiled(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    times = constant(tensor.op.inputs[1])
    known = inputs[0][1]
    if isinstance(known, Rows):
        return UNSURE if times is None else known._replace(runs=known.runs * int(times[known.dim]))
    return known


def filled(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """A tensor made from its shape."""
    return dims.element(tensor.op.inputs[0], 0) if tensor.shape.rank else ALIKE


def counted(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """The numbers from 0 up to a number of rows."""
    start, stop, step = tensor.op.inputs
    return dims.count(stop) if constant(start) == 0 and constant(step) == 1 else unfollowed(dims, tensor, inputs)


def einsum(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """Rows go where their label goes; an ellipsis stands for equal dims at the same end."""
    left, result = tensor.op.get_attr("equation").decode().replace("...", ".").split("->")
    for labels, (_, known) in zip(left.split(","), inputs, strict=True):
        if isinstance(known, Rows):
            if "." in labels[: known.dim + 1] + result[: known.dim + 1]:
                return known if known.dim == 0 and labels[0] == result[:1] == "." else UNSURE
            return known.at(result.index(labels[known.dim])) if labels[known.dim] in result else OTHER
    return inherited(tensor, inputs)


def gathered(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """Looking up along a dim puts those of the indices in its place."""
    axis = constant(tensor.op.inputs[2])
    if axis is None or tensor.op.get_attr("batch_dims"):
        return inherited(tensor, inputs[:1])
    (_, values), (indices, known) = inputs[:2]
    if isinstance(known, Rows):
        return known.at(known.dim + int(axis))
    if isinstance(values, Rows) and values.dim != int(axis) and indices.shape.rank is not None:
        return values.at(values.dim + (indices.shape.rank - 1) * (values.dim > int(axis)))
    return unfollowed(dims, tensor, inputs[:2])


def of_batch(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """What comes with the batch and is none of its dense tensors, such as the indices of a sparse one."""
    return UNSURE


DEPENDING = "Where GatherNd ScatterNd Unique UniqueV2 DynamicPartition DynamicStitch Slice SegmentSum RaggedRange"
REDUCTIONS = "Sum Mean Prod Max Min All Any ArgMax ArgMin EuclideanNorm"
RULES |= {name: unfollowed for name in DEPENDING.split()} | {name: moving(reduced) for name in REDUCTIONS.split()}
RULES |= {name: of_batch for name in ("IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue")}
RULES |= {
    "BatchMatMulV2": multiplied,
    "BroadcastTo": only(0),
    "ConcatV2": concatenated,
    "Einsum": einsum,
    "ExpandDims": moving(expanded),
    "Fill": filled,
    "GatherV2": gathered,
    "IdentityN": lambda dims, tensor, inputs: inputs[tensor.value_index][1],
    "MatMul": multiplied,
    "MirrorPad": moving(padded),
    "Pack": packed,
    "Pad": moving(padded),
    "PadV2": moving(padded),
    "Range": counted,
    "Reshape": reshaped,
    "ResourceGather": only(1),
    "ReverseV2": moving(reversed_rows),
    "Split": moving(split, 1),
    "SplitV": moving(split),
    "Squeeze": moving(squeezed),
    "StridedSlice": moving(sliced),
    "Tile": tiled,
    "Transpose": moving(transposed),
    "Unpack": moving(unpacked),
}
