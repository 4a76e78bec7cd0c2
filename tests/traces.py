"""Traces that are made by hand, of models whose memory is known."""

from collections.abc import Sequence
from random import Random

from keras_par.plan.division import Named
from keras_par.plan.trace import TRACED_ROWS, Operation, Parameter, Tensor, Trace

FLOAT = 4
PRODUCT = Named((("b", "i"), ("i", "o")), ("b", "o"))
EACH = Named((("b", "o"),), ("b", "o"))
BOTH = Named((("b", "o"), ("b", "o")), ("b", "o"))


class Layers:
    """A model of products without biases, of functions and of sums; each may be computed once more.

    Args:
        width: of the input.
        num_slots: of the optimizer, for each weight.
    """

    def __init__(self, width: int, num_slots: int = 0):
        self.trace, self.num_slots = Trace(), num_slots
        self.last = self._tensor((TRACED_ROWS, width), has_gradient=False)

    def product(self, name: str, width: int, weight: int | None = None) -> int:
        """A product with a weight of its own, or with one that another has; returns the weight's number."""
        if weight is None:
            shape, path = (self._width(self.last), width), f"{name}/kernel"
            weight = self._tensor(shape, path=path)
            num_bytes = FLOAT * shape[0] * shape[1]
            self.trace.parameters.append(Parameter(path, shape, FLOAT, True, self.num_slots * num_bytes))
        self._operation("numpy.matmul", name, (self.last, weight), width, PRODUCT, keeps=(self.last, weight))
        return weight

    def gelu(self, name: str) -> int:
        """A function that keeps three numbers of its own for each that it makes; returns the number of its result."""
        self._operation("nn.gelu", name, (self.last,), self._width(self.last), EACH, inner=3 * FLOAT)
        return self.last

    def add(self, name: str, other: int) -> None:
        """The sum with an earlier tensor."""
        self._operation("numpy.add", name, (self.last, other), self._width(self.last), BOTH)

    def _operation(self, kind: str, name: str, operands, width: int, named: Named, keeps=(), inner: float = 0.0):
        self.last = self._tensor((TRACED_ROWS, width))
        kept = ((self.last, inner),) if inner else ()
        self.trace.operations.append(
            Operation(kind, name, operands, (self.last,), named, keeps=keeps, inner=kept, block=name)
        )

    def _tensor(self, shape: tuple[int, ...], has_gradient: bool = True, path: str = "") -> int:
        self.trace.tensors.append(Tensor(shape, "float32", FLOAT, has_gradient, path, bool(path)))
        return len(self.trace.tensors) - 1

    def _width(self, number: int) -> int:
        return self.trace.tensors[number].shape[-1]


def products(widths: Sequence[int], num_slots: int) -> Trace:
    """One product after another, each with a GELU."""
    layers = Layers(widths[0], num_slots)
    for number, width in enumerate(widths[1:]):
        layers.product(f"layer {'abcdef'[number]}", width)
        layers.gelu(f"layer {'abcdef'[number]}")
    return layers.trace


def drawn_products(seed: int) -> tuple[Trace, int]:
    """Three layers of some widths, and a number of rows."""
    draw = Random(seed)
    widths = [64, *(64 * draw.randint(4, 20) for _ in range(3))]
    return products(widths, draw.choice([0, 2])), draw.choice([256, 1024, 4096])
