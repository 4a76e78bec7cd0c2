"""How much a rank computes and keeps for an operation: floating-point operations, bytes touched, bytes kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_par.plan.case import Outcome
from keras_par.plan.division import Label
from keras_par.plan.layout import Axes
from keras_par.plan.trace import Operation, Tensor, shape_at

# (Forward, backward): for each element of the largest tensor, the floating-point operations that large products do in
# the time that the function takes beyond a ReLU's. Measured by `python -m benchmarks functions` with TensorFlow 2.21,
# on one core with AVX-512 at 105 GFLOP/s and on whole tensors. No GPU was measured. ReLU, tanh and square roots took
# less than 10. Powers are left out, since TensorFlow makes products and roots of the usual ones.
FLOPS_PER_ELEMENT = {
    "math.erf": (10, 80),
    "math.logsumexp": (60, 10),
    "nn.binary_crossentropy": (260, 130),
    "nn.categorical_crossentropy": (210, 0),
    "nn.celu": (230, 190),
    "nn.elu": (40, 10),
    "nn.gelu": (40, 140),
    "nn.log_sigmoid": (320, 80),
    "nn.log_softmax": (70, 100),
    "nn.selu": (40, 10),
    "nn.sigmoid": (40, 5),
    "nn.silu": (20, 130),
    "nn.softmax": (25, 50),
    "nn.softplus": (290, 80),
    "nn.sparse_categorical_crossentropy": (410, 20),
    "numpy.cos": (80, 120),
    "numpy.exp": (20, 15),
    "numpy.expm1": (180, 70),
    "numpy.log": (45, 15),
    "numpy.log1p": (75, 30),
    "numpy.sin": (75, 120),
}

PRODUCTS = ("numpy.matmul", "numpy.einsum", "nn.conv", "nn.conv_transpose", "nn.depthwise_conv")
ATTENTION = "nn.dot_product_attention"


@dataclass(frozen=True)
class Work:
    """Of one operation on one rank, forward and backward together.

    Args:
        flops: floating-point operations of products, of which a multiplication and an addition are two; of other
            operations as `FLOPS_PER_ELEMENT` has them.
        num_bytes: read and written.
        forward_flops: the part of `flops` in the forward pass.
        forward_bytes: the part of `num_bytes` there.
        num_kernels: launches.
        kept: operands and results that are kept for the backward pass, by number, with their bytes.
        inner_bytes: what else is kept.
        flowing: the bytes of the gradients that its backward pass takes and gives, by the numbers of the tensors.
    """

    flops: float
    num_bytes: float
    forward_flops: float
    forward_bytes: float
    num_kernels: int
    kept: Mapping[int, int]
    inner_bytes: int = 0
    flowing: Mapping[int, int] = field(default_factory=dict)

    @property
    def passing_bytes(self) -> int:
        """That are taken while its backward pass is under way."""
        return self.inner_bytes + sum(self.flowing.values()) if self.flowing else 0


def work_of(
    operation: Operation,
    tensors: Sequence[Tensor],
    layouts: Mapping[int, Axes],
    outcome: Outcome,
    sizes: Mapping[str, int],
    num_rows: int,
) -> Work:
    """What an operation costs a rank.

    Args:
        operation: of a trace.
        tensors: all of the trace.
        layouts: of its operands.
        outcome: what became of it.
        sizes: of the mesh's axes.
        num_rows: on a rank.
    """
    if not operation.results:
        return Work(0, 0, 0, 0, 0, {})

    def elements(number: int, axes: Axes) -> int:
        shape = shape_at(tensors[number].shape, num_rows)
        return math.prod(shape) // math.prod(sizes[axis] for axis in axes if axis is not None)

    names = operation.named.operands if operation.named is not None else ()
    reads: dict[int, int] = {}  # elements of each operand as the operation takes it
    for place, number in enumerate(operation.operands):
        if number >= 0:
            axes = layouts.get(number, ())
            if names and names[place]:
                axes = tuple(outcome.axis_of.get(name) for name in names[place])
            reads[number] = elements(number, axes)
    made = [elements(number, axes) for number, axes in zip(operation.results, outcome.results, strict=True)]
    around = reads | dict(zip(operation.results, made, strict=True))
    moved = sum(count * tensors[number].item_bytes for number, count in around.items())
    product = product_flops(operation, tensors, outcome.axis_of, sizes, num_rows, made[0])
    wanted = [number for number in reads if tensors[number].has_gradient]
    is_backward = bool(wanted) and any(tensors[number].has_gradient for number in operation.results)
    if product:
        forward, backward = product, product * len(wanted)
    else:
        per_element = FLOPS_PER_ELEMENT.get(operation.name, (0, 0))
        forward, backward = (float(count * max(around.values())) for count in per_element)
    num_kernels = 1 + is_backward * (len(wanted) if product else 1)
    kept = {number: around[number] * tensors[number].item_bytes for number in operation.keeps}
    inner = sum(round(around[number] * num_bytes) for number, num_bytes in operation.inner)
    flowing = {
        number: count * tensors[number].item_bytes
        for number, count in around.items()
        if is_backward and tensors[number].has_gradient and not tensors[number].path
    }
    flops, num_bytes = forward + backward * is_backward, moved * (1 + 2 * is_backward)
    return Work(flops, num_bytes, forward, moved, num_kernels, kept, inner, flowing)


def product_flops(
    operation: Operation,
    tensors: Sequence[Tensor],
    axis_of: Mapping[Label, str],
    sizes: Mapping[str, int],
    num_rows: int,
    num_made: int,
) -> float:
    """Of the forward pass of a product, 0 of other operations.

    Args:
        num_made: elements of the result on this rank; the other arguments as `work_of` has them.
    """
    if operation.named is None or operation.name not in (*PRODUCTS, ATTENTION):
        return 0
    lengths: dict[Label, int] = {}
    for number, names in zip(operation.operands, operation.named.operands, strict=True):
        if number >= 0:
            for name, size in zip(names, shape_at(tensors[number].shape, num_rows), strict=False):
                if name is not None:
                    lengths[name] = size // (sizes[axis_of[name]] if name in axis_of else 1)
    if operation.name == ATTENTION:
        return 2 * num_made * lengths["s"] * (1 + lengths["h"] / lengths["v"])
    return 2 * num_made * math.prod(size for name, size in lengths.items() if name not in operation.named.result)
