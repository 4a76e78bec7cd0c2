"""One operation of a trace whose operands are divided in one way, and a list of what is sent for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from keras_par.plan.division import Label, Move
from keras_par.plan.layout import Axes
from keras_par.plan.trace import Operation, Shape, Tensor, rows_at, shape_at

Collective = Literal["all_reduce", "all_gather", "reduce_scatter"]
FORWARD: dict[str, Collective] = {
    "gather": "all_gather",
    "gather_and_enter": "all_gather",
    "total": "all_reduce",
    "scatter": "reduce_scatter",
    "largest": "all_reduce",
}
# The pairs of `sharding.collectives`; the size is that of the upstream gradient.
BACKWARD: dict[str, Collective] = {
    "enter": "all_reduce",
    "split": "all_gather",
    "gather_and_enter": "reduce_scatter",
    "scatter": "all_gather",
}


@dataclass(frozen=True)
class Sent:
    """One move of a tensor.

    Args:
        kind: as `Move` has it, or "largest" for a maximum over ranks, which has no gradient.
        axis: along which.
        num_elements: of the tensor before it, on a rank.
        num_after: the same after it.
        item_bytes: of an element.
        has_gradient: True if a gradient comes back this way.
        once: the number of the tensor if the move is made once for all that read it, else None.
        is_aside: True if the rows' way through the model does not wait for it, as it is about a variable.
        dim: along which shards are joined or cut, None where they are added up.
    """

    kind: str
    axis: str
    num_elements: int
    num_after: int
    item_bytes: int
    has_gradient: bool
    once: int | None = None
    is_aside: bool = False
    dim: int | None = None

    @property
    def collectives(self) -> list[tuple[Collective, int]]:
        """What is sent for it, forward and backward, and how many bytes a rank gives to that."""
        found = self.forward
        if self.has_gradient and self.kind in BACKWARD:
            found.append((BACKWARD[self.kind], self.num_after * self.item_bytes))
        return found

    @property
    def forward(self) -> list[tuple[Collective, int]]:
        """Of these the ones of the forward pass."""
        return [(FORWARD[self.kind], self.num_elements * self.item_bytes)] if self.kind in FORWARD else []


@dataclass(frozen=True)
class Outcome:
    """What becomes of an operation.

    Args:
        results: the layouts.
        sent: the moves, in their order.
        axis_of: which axis divides which of its named dims.
    """

    results: tuple[Axes, ...]
    sent: tuple[Sent, ...] = ()
    axis_of: Mapping[Label, str] = field(default_factory=dict)


class Case:
    """An operation with operands that are divided in one way.

    Args:
        operation: of the trace.
        tensors: all of the trace.
        layouts: of the operands that are divided, by their numbers.
        sizes: of the mesh's axes.
        num_rows: on a rank.
    """

    def __init__(
        self,
        operation: Operation,
        tensors: Sequence[Tensor],
        layouts: Mapping[int, Axes],
        sizes: Mapping[str, int],
        num_rows: int,
    ):
        self.operation, self.tensors, self.layouts = operation, tensors, layouts
        self.sizes, self.num_rows = sizes, num_rows
        self.sent: list[Sent] = []
        self.is_wanted = any(tensors[number].has_gradient for number in operation.results)

    def shape(self, number: int) -> Shape:
        """Of a whole tensor, with this rank's rows."""
        return shape_at(self.tensors[number].shape, self.num_rows)

    def axes(self, number: int) -> Axes:
        """The layout of a tensor."""
        return self.layouts.get(number) or (None,) * len(self.tensors[number].shape)

    def local(self, shape: Shape, axes: Axes) -> Shape:
        """The shape of a shard."""
        return tuple(size if axis is None else size // self.sizes[axis] for size, axis in zip(shape, axes, strict=True))

    def argument(self, name: str, default: Any = None) -> Any:
        """An argument of the operation, with this rank's rows in place of the trace's."""

        def here(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(here, value))
            return rows_at(value, self.num_rows) if isinstance(value, int) and not isinstance(value, bool) else value

        return here(self.operation.arguments.get(name, default))

    def send(
        self,
        kind: str,
        axis: str,
        before: Shape,
        number: int,
        after: Shape | None = None,
        once: int | None = None,
        dim: int | None = None,
    ) -> None:
        """Notes a move of a tensor like `number`."""
        tensor = self.tensors[number]
        is_wanted = self.is_wanted and tensor.has_gradient
        after = before if after is None else after
        sizes = math.prod(before), math.prod(after)
        self.sent.append(Sent(kind, axis, *sizes, tensor.item_bytes, is_wanted, once, tensor.is_weight, dim))

    def move(self, number: int, moves: Sequence[Move], shape: Shape) -> Shape:
        """Notes moves of a shard of this shape; returns its shape after them."""
        is_first = True
        for move in moves:
            after = list(shape)
            if move.dim is not None:
                size = self.sizes[move.axis]
                is_joined = move.kind in ("gather", "gather_and_enter")
                after[move.dim] = after[move.dim] * size if is_joined else after[move.dim] // size
            if move.kind != "enter" or self.tensors[number].dtype.startswith(("float", "bfloat", "complex")):
                once = number if move.kind == "enter" and is_first else None
                self.send(move.kind, move.axis, shape, number, tuple(after), once, move.dim)
            is_first = is_first and move.kind == "enter"
            shape = tuple(after)
        return shape

    def gather(self, number: int) -> None:
        """Notes that a tensor becomes whole, which is remembered."""
        shape, axes = self.local(self.shape(number), self.axes(number)), self.axes(number)
        for dim, axis in enumerate(axes):
            if axis is not None:
                after = (*shape[:dim], shape[dim] * self.sizes[axis], *shape[dim + 1 :])
                self.send("gather", axis, shape, number, after, number, dim)
                shape = after

    def outcome(self, *results: Axes, axis_of: Mapping[Label, str] | None = None) -> Outcome:
        """With what was noted, and these layouts of the results."""
        return Outcome(results, tuple(self.sent), axis_of or {})

    def whole_results(self) -> tuple[Axes, ...]:
        """Layouts that divide nothing."""
        return tuple((None,) * len(self.tensors[number].shape) for number in self.operation.results)
