"""Finds layers that follow others like them directly: of such a row every other one may lie in its own way.

Columns before rows cost half of what columns before columns do, so that equal layers in a row need two layouts.
"""

from collections.abc import Hashable
from typing import NamedTuple

from keras_par.plan.trace import Trace
from keras_par.searching.paths import layer_of, without_numbers


class Kernel(NamedTuple):
    """The last kernel on the way to a tensor.

    Args:
        place: of the operation that reads it.
        kind: its path, numbers aside, and its shape.
        turn: of its layer, 0 or 1.
    """

    place: int
    kind: Hashable
    turn: int


def turns(trace: Trace) -> dict[str, int]:
    """For each layer with a kernel its turn: 0, or after a layer of the same kind the other than that has.

    Args:
        trace: of a model.
    """
    path_of = {n: tensor.path for n, tensor in enumerate(trace.tensors) if tensor.path and len(tensor.shape) > 1}
    found: dict[str, int] = {}
    last: dict[int, Kernel] = {}  # by tensor
    for place, operation in enumerate(trace.operations):
        reads = [number for number in operation.operands if number >= 0]
        kernels = [number for number in reads if number in path_of]
        if kernels and all(trace.tensors[number].is_weight for number in reads):  # as where it is cast
            path_of.update(dict.fromkeys(operation.results, path_of[kernels[0]]))
            continue
        before = max((last[number] for number in reads if number in last), default=None, key=lambda each: each.place)
        for number in kernels:
            kind = without_numbers(path_of[number]), trace.tensors[number].shape
            turn = 1 - before.turn if before is not None and before.kind == kind else 0
            before = Kernel(place, kind, found.setdefault(layer_of(path_of[number]), turn))
        if before is not None:
            last.update(dict.fromkeys(operation.results, before))
    return found
