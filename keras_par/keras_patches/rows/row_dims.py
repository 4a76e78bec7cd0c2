"""Tells in which tensors of a step the batch's rows lie, and how, by following the graph back to the batch."""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")  # which run within the graph around them
MANY = 10**9  # places of rows where an operation is tried out


class Rows(NamedTuple):
    """A dim is runs of the batch's rows, one run behind another.

    Args:
        runs: for each run, how many places one row of the batch has in it: (1,) for the batch itself, (3,) where three
            time steps of each row were joined with the rows, (1, 1) where two tensors of rows were concatenated.
        dim: which dim it is, 0 unless the tensor was transposed.
        is_exact: False if each run has more places by a number that only its size tells, the same for all runs.
    """

    runs: tuple[int, ...]
    dim: int = 0
    is_exact: bool = True

    def at(self, dim: int) -> "Rows":
        """The same rows in another dim."""
        return self._replace(dim=dim)


class Mark(enum.Enum):
    """What else can be known of a tensor."""

    ALIKE = "does not depend on the batch"
    OTHER = "depends on the batch, whose rows are in no dim"
    UNSURE = "depends on the batch, in a way that is not followed"


ALIKE, OTHER, UNSURE = Mark.ALIKE, Mark.OTHER, Mark.UNSURE

Known = Rows | Mark
Inputs = list[tuple[tf.Tensor, Known]]


class RowDims:
    """What is known of the tensors of one graph and the branches and loops in it.

    Args:
        roots: tensors whose dim 0 is the batch's rows; None if these are the arguments of every function.
        gathers_rows: True if an all-gather joins the rows of all ranks.
    """

    def __init__(self, roots: list[tf.Tensor] | None, gathers_rows: bool):
        self._known: dict[tuple, Known] = {}
        self._sizes: dict[tuple, list[Known]] = {}
        self._arguments_are_roots = roots is None
        self._gathers_rows = gathers_rows
        for root in roots or []:
            self.note(root, Rows((1,)))

    def note(self, tensor: tf.Tensor, known: Known) -> None:
        """Says what a tensor of a graph is."""
        self._known[key(tensor)] = known

    def note_shape(self, constant: tf.Tensor, tensor: tf.Tensor) -> None:
        """Says that a constant of a graph is the shape of `tensor`, where TensorFlow has put its value for it."""
        self._sizes[key(constant)] = sizes_of(tensor, self.of(tensor))

    def of(self, tensor: tf.Tensor) -> Known:
        """What is known of a tensor of a graph. Each operation is looked at once."""
        pending = [tensor]
        while pending:
            newest = pending[-1]
            if key(newest) not in self._known:
                outer = captured(newest)
                parents = [outer] if outer is not None else newest.op.inputs
                missing = [each for each in parents if is_symbolic(each) and key(each) not in self._known]
                if missing:
                    pending += missing
                    continue
                self._known[key(newest)] = self._rule(newest)
            pending.pop()
        return self._known[key(tensor)]

    def _rule(self, tensor: tf.Tensor) -> Known:
        kind = tensor.op.type
        if kind == "Placeholder":
            outer = captured(tensor)
            if is_symbolic(outer):
                return self._known[key(outer)]
            if outer is not None or not tensor.shape.rank:
                return ALIKE
            return Rows((1,)) if self._arguments_are_roots else UNSURE  # the argument of a function in the step
        if "Allgather" in kind or "AllGather" in kind or "SharedGather" in kind:
            return OTHER if self._gathers_rows else UNSURE
        inputs = [(each, self._known[key(each)]) for each in tensor.op.inputs]
        return RULES[kind](self, tensor, inputs) if kind in RULES else inherited(tensor, inputs)

    def sizes(self, numbers: tf.Tensor) -> list[Known]:
        """What is known of each number of a vector of sizes, or of a scalar: `Rows` if it counts places of rows."""
        if is_symbolic(numbers):
            found = self._sizes[key(numbers)] if key(numbers) in self._sizes else self._followed(numbers)
            if found is not None:
                return found
        known = ALIKE if not is_symbolic(numbers) or self.of(numbers) is ALIKE else UNSURE
        return [known] * (numbers.shape.num_elements() or 1)

    def _followed(self, numbers: tf.Tensor) -> list[Known] | None:
        """`sizes` by the operation that makes the numbers, None if it is another."""
        kind, inputs, outer = numbers.op.type, numbers.op.inputs, captured(numbers)
        if outer is not None:
            return self.sizes(outer)
        if kind == "Shape":
            return sizes_of(inputs[0], self.of(inputs[0]))
        if kind in ("Cast", "Identity", "Reshape", "ExpandDims", "Squeeze"):
            return self.sizes(inputs[0])
        if kind == "Pack" or (kind == "ConcatV2" and all(part.shape.rank == 1 for part in inputs[:-1])):
            return [size for part in (inputs if kind == "Pack" else inputs[:-1]) for size in self.sizes(part)]
        if kind == "StridedSlice" and inputs[0].shape.rank == 1 and inputs[0].shape[0]:
            [entry, *_] = sliced(numbers.op) or [None]
            if isinstance(entry, (int, slice)) and all(constant(each) is not None for each in inputs[1:]):
                found = self.sizes(inputs[0])[entry]
                return found if isinstance(found, list) else [found]
        if kind in ("Mul", "FloorDiv"):
            ordered = inputs if kind == "FloorDiv" or constant(inputs[0]) is None else (inputs[1], inputs[0])
            [rows], factor = self.sizes(ordered[0])[:1], constant(ordered[1])
            if isinstance(rows, Rows) and factor is not None and np.ndim(factor) == 0:
                return [scaled(rows, int(factor), 1) if kind == "Mul" else scaled(rows, 1, int(factor))]
        return None


def key(tensor: tf.Tensor) -> tuple:
    return id(tensor.graph), tensor.op.name, tensor.value_index


def is_symbolic(tensor: Any) -> bool:
    """True for a tensor of a graph."""
    return isinstance(tensor, tf.Tensor) and hasattr(tensor, "graph") and tf.is_symbolic_tensor(tensor)


def captured(tensor: tf.Tensor) -> Any:
    """The tensor outside of a function's graph that an argument of the function stands for, None if none does."""
    if tensor.op.type != "Placeholder":
        return None
    pairs = getattr(tensor.graph, "captures", [])
    return next((outer for outer, inner in pairs if inner is tensor), None)


def constant(tensor: tf.Tensor):
    """A tensor's value if it is known while tracing, else None."""
    return tf.get_static_value(tensor)


def sizes_of(tensor: tf.Tensor, known: Known) -> list[Known]:
    """What is known of the size of each dim of a tensor; where rows may be is dim 0."""
    where = known.dim if isinstance(known, Rows) else 0
    size = known.at(0) if isinstance(known, Rows) else known
    return [size if dim == where or known is ALIKE else OTHER for dim in range(tensor.shape.rank or 0)]


def scaled(rows: Rows, times: int, by: int) -> Known:
    """Rows of which each has `times` / `by` as many places."""
    if not rows.is_exact or any(run * times % by for run in rows.runs):
        return rows._replace(is_exact=False)
    return Rows(tuple(run * times // by for run in rows.runs))


def inherited(tensor: tf.Tensor, inputs: Inputs) -> Known:
    """What most operations do: an output has the rows of the first input that has as many places in that dim."""
    for value, known in inputs:
        if isinstance(known, Rows) and value.shape.rank and tensor.shape.rank:
            is_kept = not known.dim or value.shape.rank == tensor.shape.rank
            if is_kept and value.shape[known.dim] == tensor.shape[known.dim]:
                return known
    kinds = [known for _, known in inputs]
    if any(isinstance(known, Rows) or known is UNSURE for known in kinds):
        return UNSURE
    return OTHER if OTHER in kinds else ALIKE


def axes_of(op: Any, source: int | str, rank: int | None) -> list[int] | None:
    """The dims that an input or an attribute of an operation tells, None if only running does."""
    given = op.get_attr(source) if isinstance(source, str) else constant(op.inputs[source])
    return None if given is None or not rank else [int(axis) % rank for axis in np.ravel(given)]


REDUCTIONS = "Sum Mean Prod Max Min All Any EuclideanNorm"
# Operations whose output is an input indexed: which input or attribute tells the dims, and what they are indexed by.
INDEXES: dict[str, tuple[int | str, Any]] = {
    **dict.fromkeys(REDUCTIONS.split(), (1, 0)),
    "ArgMax": (1, 0),
    "ArgMin": (1, 0),
    "ExpandDims": (1, None),
    "Pack": ("axis", None),
    "ReverseV2": (1, slice(None, None, -1)),
    "Split": (0, slice(1)),
    "SplitV": (2, slice(1)),
    "Squeeze": ("squeeze_dims", 0),
    "Unpack": ("axis", 0),
}


def sliced(op: Any) -> tuple | None:
    """A slice as an index, in which 0 stands for ends that only running tells."""
    begins, ends, strides = (constant(each) for each in op.inputs[1:])
    if strides is None:
        return None
    index: list[Any] = []
    for place, stride in enumerate(strides):
        begin_is_open, end_is_open, is_ellipsis, is_new, is_shrunk = (
            op.get_attr(f"{name}_mask") >> place & 1 for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
        )
        begin, end = (0 if values is None else int(values[place]) for values in (begins, ends))
        if is_ellipsis or is_new:
            index.append(... if is_ellipsis else None)
        elif is_shrunk:
            index.append(begin)
        else:
            index.append(slice(None if begin_is_open else begin, None if end_is_open else end, int(stride)))
    return tuple(index)


def indexed(op: Any, rank: int | None, dim: int) -> np.ndarray | None:
    """What an operation makes of an array of `rank` dims whose stride is 1 in one of them and 0 in others."""
    is_rows = np.arange(rank or 0) == dim
    array = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), np.where(is_rows, MANY, 1), is_rows.astype(int))
    if op.type == "Transpose":
        order = axes_of(op, 1, rank)
        return None if order is None else array.transpose(order)
    if op.type == "StridedSlice":
        index = sliced(op)
        return None if index is None else array[tuple(0 if isinstance(each, int) else each for each in index)]
    source, entry = INDEXES[op.type]
    count = (rank or 0) + (entry is None)
    axes = axes_of(op, source, count)
    if op.type in REDUCTIONS and op.get_attr("keep_dims"):
        entry = slice(1)
    return None if axes is None else array[tuple(entry if each in axes else slice(None) for each in range(count))]


def moved(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """Rows that are not all taken, or in another order, are lost."""
    value, known = next((each for each in inputs if isinstance(each[1], Rows)), inputs[0])
    if not isinstance(known, Rows):
        return inherited(tensor, inputs)
    result = indexed(tensor.op, value.shape.rank, known.dim)
    if result is None:
        return UNSURE
    found = [dim for dim in range(result.ndim) if (result.strides[dim], result.shape[dim]) == (1, MANY)]
    return known.at(found[0]) if found else OTHER


def unfollowed(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """What comes of operations whose dims depend on values."""
    return ALIKE if all(known is ALIKE for _, known in inputs) else UNSURE


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
    times, known = constant(tensor.op.inputs[1]), inputs[0][1]
    if not isinstance(known, Rows):
        return known
    return UNSURE if times is None else known._replace(runs=known.runs * int(times[known.dim]))


def filled(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """A tensor made from its shape."""
    sizes = dims.sizes(tensor.op.inputs[0]) if tensor.shape.rank else [ALIKE]
    return next((size.at(dim) for dim, size in enumerate(sizes) if isinstance(size, Rows)), sizes[0])


def counted(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """The numbers from 0 up to a number of rows."""
    start, stop, step = tensor.op.inputs
    return dims.sizes(stop)[0] if constant(start) == 0 and constant(step) == 1 else unfollowed(dims, tensor, inputs)


def contracted(dims: RowDims, tensor: tf.Tensor, inputs: Inputs) -> Known:
    """Rows go where their label goes; an ellipsis stands for equal dims at the same end."""
    op = tensor.op
    if op.type == "MatMul":
        equation = f"{'ba' if op.get_attr('transpose_a') else 'ab'},{'cb' if op.get_attr('transpose_b') else 'bc'}->ac"
    else:
        equation = op.get_attr("equation").decode().replace("...", ".")
    left, result = equation.split("->")
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


DEPENDING = "Where GatherNd ScatterNd Unique UniqueV2 DynamicPartition DynamicStitch Slice SegmentSum RaggedRange"
OF_BATCH = "IteratorGetNext IteratorGetNextSync OptionalGetValue"  # as indices of a sparse part, none of its rows
Rule = Callable[[RowDims, tf.Tensor, Inputs], Known]
RULES: dict[str, Rule] = {
    **dict.fromkeys((*INDEXES, "StridedSlice", "Transpose"), moved),
    **dict.fromkeys(DEPENDING.split(), unfollowed),
    **dict.fromkeys(OF_BATCH.split(), lambda dims, tensor, inputs: UNSURE),
    "BroadcastTo": lambda dims, tensor, inputs: inherited(tensor, inputs[:1]),
    "ConcatV2": concatenated,
    "Einsum": contracted,
    "Fill": filled,
    "GatherV2": gathered,
    "IdentityN": lambda dims, tensor, inputs: inputs[tensor.value_index][1],
    "MatMul": contracted,
    "Range": counted,
    "Reshape": reshaped,
    "ResourceGather": lambda dims, tensor, inputs: inherited(tensor, inputs[1:]),
    "Tile": tiled,
}  # of operations that are none of those of which `inherited` tells
