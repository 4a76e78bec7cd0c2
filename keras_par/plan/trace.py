"""A model's forward pass as a list: which of Keras's operations it calls, with what tensors."""

from dataclasses import dataclass, field, replace

from keras_par.plan.division import Named

# Models are traced with so many rows: a prime that no other size is a multiple of, so that any size tells its rows.
TRACED_ROWS = 10007

WHOLE = "whole"  # the name of an operation without a rule
ASSIGN = "assign"  # of one that gives a variable another value

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor of a trace.

    Args:
        shape: whole, with TRACED_ROWS rows.
        dtype: its name.
        item_bytes: of an element.
        has_gradient: True if a gradient is wanted of it.
        path: a variable's, else "".
        is_weight: True if it is made of variables alone, so that no row's way through the model waits for it.
        within: the number of the tensor in whose memory it is, None if it has its own.
    """

    shape: Shape
    dtype: str
    item_bytes: int
    has_gradient: bool
    path: str = ""
    is_weight: bool = False
    within: int | None = None


@dataclass(frozen=True)
class Operation:
    """One call of a function of Keras's backend.

    Args:
        name: of the function, as "numpy.matmul", WHOLE or ASSIGN.
        layer: the path of the layer that called it.
        operands: numbers of the tensors that `named` is about; without names, of all that it reads.
        results: numbers of what it makes.
        named: its dims, None where there is no such rule.
        steps: what it is made of where a dim is divided that it otherwise takes whole, None if that is gathered.
        keeps: numbers of its operands and results that its backward pass reads.
        inner: what else that reads: bytes for each element of an operand or result, by the number of that.
        block: the name of the layer that it is part of and that could be computed once more in the backward pass.
    """

    name: str
    layer: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    named: Named | None = None
    steps: "Steps | None" = None
    keeps: tuple[int, ...] = ()
    inner: tuple[tuple[int, float], ...] = ()
    block: str = ""


@dataclass(frozen=True)
class Steps:
    """Operations that one is made of, with numbers of their own.

    Args:
        tensors: of these.
        operations: in the order of calling.
        operands: the numbers of what stands for the operands.
        results: the numbers of the results.
    """

    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]


@dataclass(frozen=True)
class Aside:
    """What a layer computes outside of operations that have a rule, such as loops: for each row, and besides.

    Args:
        layer: its path.
        flops: floating-point operations of products, forward and backward, with the next two.
        num_bytes: read and written.
        num_kernels: launches, of which rows make no more.
        kept_bytes: for the backward pass.
    """

    layer: str
    flops: float
    num_bytes: float
    num_kernels: int
    kept_bytes: float


@dataclass(frozen=True)
class Parameter:
    """A variable of the model.

    Args:
        path: its name in layout maps.
        shape: whole.
        item_bytes: of an element.
        is_trainable: True if it is trained.
        slot_bytes: of the optimizer's state that has its shape.
        is_elementwise: True if its optimizer updates each element by itself.
    """

    path: str
    shape: Shape
    item_bytes: int
    is_trainable: bool
    slot_bytes: int = 0
    is_elementwise: bool = True


@dataclass
class Trace:
    """All of it, in the order of calling."""

    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    parameters: list[Parameter] = field(default_factory=list)
    asides: list[Aside] = field(default_factory=list)
    other_bytes: int = 0  # of the optimizer's state that belongs to no variable


def without_idle_gradients(trace: Trace) -> None:
    """Takes back that a gradient is wanted of tensors on which the loss, made last, does not depend by derivatives.

    What is made of tensors that are taken whole is not known, but that the loss depends on it.
    """
    reached = set(trace.operations[-1].results) if trace.operations else set()
    for operation in reversed(trace.operations):
        if operation.name == WHOLE or reached.intersection(operation.results):
            reached.update(operation.operands)
    for number, tensor in enumerate(trace.tensors):
        if tensor.has_gradient and number not in reached:
            trace.tensors[number] = replace(tensor, has_gradient=False)


def rows_at(size: int, num_rows: int) -> int:
    """A size of the trace where there are so many rows."""
    return size // TRACED_ROWS * num_rows if size and size % TRACED_ROWS == 0 else size


def shape_at(shape: Shape, num_rows: int) -> Shape:
    """A shape of the trace where there are so many rows."""
    return tuple(rows_at(size, num_rows) for size in shape)
