"""One operation of a trace whose operands are divided in one way, and a list of what is sent for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from keras_par.plan.division import Label, Move
from keras_par.plan.layout import Axes
from keras_par.plan.trace import Operation, Shape, Tensor, shape_at

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

    def axes(self, number: int) -> Axes:
        """The layout of a tensor."""
        return self.layouts.get(number) or (None,) * len(self.tensors[number].shape)

    def local(self, number: int, axes: Axes) -> Shape:
        """The shape of a shard of a tensor that lies so, with this rank's rows."""
        shape = shape_at(self.tensors[number].shape, self.num_rows)
        return tuple(size if axis is None else size // self.sizes[axis] for size, axis in zip(shape, axes, strict=True))

    def move(self, number: int, moves: Sequence[Move], shape: Shape) -> None:
        """Notes moves of a shard, of this shape, of a tensor like `number`.

        Entering an axis first, and gathering all that is divided, is remembered.
        """
        tensor = self.tensors[number]
        gathers = all(move.kind == "gather" for move in moves) and len(moves) == sum(map(bool, self.axes(number)))
        is_first = True
        for move in moves:
            after = list(shape)
            if move.dim is not None:
                size = self.sizes[move.axis]
                is_joined = move.kind in ("gather", "gather_and_enter")
                after[move.dim] = after[move.dim] * size if is_joined else after[move.dim] // size
            is_first = is_first and move.kind == "enter"
            if move.kind != "enter" or tensor.dtype.startswith(("float", "bfloat", "complex")):
                once = number if gathers or is_first else None
                sizes, is_wanted = (math.prod(shape), math.prod(after)), self.is_wanted and tensor.has_gradient
                self.sent.append(
                    Sent(move.kind, move.axis, *sizes, tensor.item_bytes, is_wanted, once, tensor.is_weight, move.dim)
                )
            shape = tuple(after)

    def gather(self, number: int) -> None:
        """Notes that a tensor becomes whole."""
        axes = self.axes(number)
        moves = [Move("gather", axis, dim) for dim, axis in enumerate(axes) if axis is not None]
        self.move(number, moves, self.local(number, axes))

    def outcome(self, *results: Axes, axis_of: Mapping[Label, str] | None = None) -> Outcome:
        """With what was noted, and these layouts of the results; they are whole unless given."""
        whole = tuple((None,) * len(self.tensors[number].shape) for number in self.operation.results)
        return Outcome(results or whole, tuple(self.sent), axis_of or {})
