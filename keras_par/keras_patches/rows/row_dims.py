"""Tells in which tensors of a step the batch's rows lie, and how, by following the graph back to the batch."""

import enum
from typing import Any, NamedTuple

import tensorflow as tf

BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")  # which run within the graph around them


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
RULES: dict[str, Any] = {}  # by the operation's type, see row_rules.py


class RowDims:
    """What is known of the tensors of one graph and the branches and loops in it.

    Args:
        roots: tensors whose dim 0 is the batch's rows; None if these are the arguments of every function.
        gathers_rows: True if an all-gather joins the rows of all ranks.
    """

    def __init__(self, roots: list[tf.Tensor] | None, gathers_rows: bool):
        self._known: dict[tuple, Known] = {}
        self._shapes: dict[tuple, tf.Tensor] = {}  # of which tensor a constant is the shape
        self._arguments_are_roots = roots is None
        self._gathers_rows = gathers_rows
        for root in roots or []:
            self.note(root, Rows((1,)))

    def note(self, tensor: tf.Tensor, known: Known) -> None:
        """Says what a tensor of a graph is."""
        self._known[key(tensor)] = known

    def note_shape(self, constant: tf.Tensor, tensor: tf.Tensor) -> None:
        """Says that a constant of a graph is the shape of `tensor`, where TensorFlow has put its value for it."""
        self._shapes[key(constant)] = tensor

    def of(self, tensor: tf.Tensor) -> Known:
        """What is known of a tensor of a graph. Each operation is looked at once."""
        pending = [tensor]
        while pending:
            newest = pending[-1]
            if key(newest) not in self._known:
                missing = [parent for parent in self._parents(newest) if key(parent) not in self._known]
                if missing:
                    pending += missing
                    continue
                self._known[key(newest)] = self._rule(newest)
            pending.pop()
        return self._known[key(tensor)]

    def _parents(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        outer = captured(tensor)
        found = [outer] if outer is not None else list(tensor.op.inputs)
        shaped = self._shapes.get(key(tensor))
        return [parent for parent in [*found, shaped] if is_symbolic(parent)]

    def _rule(self, tensor: tf.Tensor) -> Known:
        if tensor.op.type == "Placeholder":
            outer = captured(tensor)
            if is_symbolic(outer):
                return self._known[key(outer)]
            if outer is not None or not tensor.shape.rank:
                return ALIKE
            return Rows((1,)) if self._arguments_are_roots else UNSURE  # the argument of a function in the step
        if "Allgather" in tensor.op.type or "AllGather" in tensor.op.type or "SharedGather" in tensor.op.type:
            return OTHER if self._gathers_rows else UNSURE
        inputs = [(each, self._known[key(each)]) for each in tensor.op.inputs]
        rule = RULES.get(tensor.op.type)
        return rule(self, tensor, inputs) if rule else inherited(tensor, inputs)

    def element(self, shape: tf.Tensor, place: int) -> Known:
        """What is known of a number in a vector of sizes: `Rows` if it counts places of the batch's rows."""
        source = self._shapes.get(key(shape)) if is_symbolic(shape) else None
        if source is None and (not is_symbolic(shape) or shape.op.type == "Const"):
            return ALIKE
        self.of(shape)
        if source is not None or shape.op.type == "Shape":
            source = shape.op.inputs[0] if source is None else source
            return place_of(self.of(source), place)
        inputs = shape.op.inputs
        if shape.op.type == "Pack" and place < len(inputs):
            return self.count(inputs[place])
        if shape.op.type == "ConcatV2":
            for part in inputs[:-1]:
                size = part.shape[0] if part.shape.rank == 1 else None
                if size is None:
                    return UNSURE
                if place < size:
                    return self.element(part, place)
                place -= size
        if shape.op.type in ("Cast", "Identity"):
            return self.element(inputs[0], place)
        if shape.op.type in ("Reshape", "ExpandDims") and inputs[0].shape.rank == 0:
            return self.count(inputs[0])
        if shape.op.type == "StridedSlice" and shape.shape.rank == 1:
            begin = constant(inputs[1])
            if begin is not None and shape.op.get_attr("begin_mask") | (begin[0] >= 0):
                return self.element(inputs[0], place + (0 if shape.op.get_attr("begin_mask") else int(begin[0])))
        return ALIKE if self.of(shape) is ALIKE else UNSURE

    def count(self, number: tf.Tensor) -> Known:
        """What is known of a scalar that may be the size of a dim."""
        kind, inputs = number.op.type, number.op.inputs
        if kind in ("Cast", "Identity"):
            return self.count(inputs[0])
        if kind == "Placeholder" and is_symbolic(outer := captured(number)):
            return self.count(outer)
        if kind == "StridedSlice" and inputs[0].shape.rank == 1:
            place = constant(inputs[1])
            return UNSURE if place is None or place[0] < 0 else self.element(inputs[0], int(place[0]))
        if kind in ("Mul", "FloorDiv") and len(inputs) == 2:
            ordered = inputs if kind == "FloorDiv" or constant(inputs[0]) is None else (inputs[1], inputs[0])
            rows, factor = self.count(ordered[0]), constant(ordered[1])
            if isinstance(rows, Rows) and factor is not None:
                return scaled(rows, int(factor), 1) if kind == "Mul" else scaled(rows, 1, int(factor))
        return ALIKE if self.of(number) is ALIKE else UNSURE


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


def place_of(known: Known, dim: int) -> Known:
    """What is known of the size of one dim of a tensor; where rows may be is dim 0."""
    if isinstance(known, Rows):
        return known.at(0) if known.dim == dim else OTHER
    return known if dim == 0 or known is ALIKE else OTHER


def scaled(rows: Rows, times: int, by: int) -> Known:
    """Rows of which each has `times` / `by` as many places."""
    if not rows.is_exact or any(run * times % by for run in rows.runs):
        return rows._replace(is_exact=False)
    return Rows(tuple(run * times // by for run in rows.runs))


def inherited(tensor: tf.Tensor, inputs: list[tuple[tf.Tensor, Known]]) -> Known:
    """What most operations do: an output has the rows of the first input that has as many places in that dim."""
    for value, known in inputs:
        if isinstance(known, Rows) and fits(value, tensor, known.dim):
            return known
    kinds = [known for _, known in inputs]
    if any(isinstance(known, Rows) or known is UNSURE for known in kinds):
        return UNSURE
    return OTHER if OTHER in kinds else ALIKE


def fits(value: tf.Tensor, result: tf.Tensor, dim: int) -> bool:
    if not value.shape.rank or not result.shape.rank or (dim and value.shape.rank != result.shape.rank):
        return False
    return value.shape[dim] == result.shape[dim]
