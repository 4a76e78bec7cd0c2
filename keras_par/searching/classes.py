"""What repeats in a model: paths that differ in numbers only, and layers that are alike and are decided together."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from keras_par.plan.layout import Axes
from keras_par.plan.strategy_file import Entry
from keras_par.plan.trace import Operation, Trace


def without_numbers(path: str) -> str:
    """A path in which layers that were numbered have one name."""
    return re.sub(r"\d+", "#", path)


def entries(layouts: Mapping[str, Axes], paths: Iterable[str]) -> tuple[Entry, ...]:
    """Patterns that give these variables their layouts, and none to others.

    Args:
        layouts: of the variables that are divided, by path.
        paths: of all variables.
    """
    alike: dict[str, set[Axes | None]] = {}
    for path in paths:
        alike.setdefault(without_numbers(path), set()).add(layouts.get(path))
    found: dict[str, Axes] = {}
    for path, axes in layouts.items():
        is_common = len(alike[without_numbers(path)]) == 1
        found[pattern_of(path) if is_common else re.escape(path)] = axes
    return tuple(Entry(pattern, axes) for pattern, axes in found.items())


def names(some: Iterable[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """Patterns that match these names, and none of the others."""
    return tuple(entry.pattern for entry in entries(dict.fromkeys(some, ()), all_names))


def pattern_of(path: str) -> str:
    """A pattern for a path and those that differ in numbers alone."""
    return re.escape(without_numbers(path)).replace(r"\#", r"\d+")


ROUNDS = 3  # how far an operation's surroundings are looked at


def numbered(keys: Sequence[Hashable]) -> list[int]:
    """For each key a number, the same for equal keys."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def tensor_classes(trace: Trace, fixed: Mapping[str, Hashable]) -> list[int]:
    """For each tensor the number of its class.

    Variables are of one class if their paths, numbers aside, and the shapes of all in their layers are the same, what
    is said of them, and their layers' turns. Others are, if the operations that make them are alike, and those that
    surround these. (Were biases alike by their own shapes, layers far apart would be decided together for nothing.)

    Args:
        trace: of a model.
        fixed: what is said of variables, by path.
    """

    turn_of = turns(trace)
    shapes: dict[str, tuple] = {}
    for tensor in trace.tensors:
        if tensor.path:
            layer = layer_of(tensor.path)
            shapes[layer] = (*shapes.get(layer, ()), (without_numbers(tensor.path), tensor.shape))
    kinds = dict(zip(shapes, numbered(list(shapes.values())), strict=True))

    def variable(path: str) -> Hashable:
        layer = layer_of(path)
        return without_numbers(path), fixed.get(path), turn_of.get(layer), kinds.get(layer)

    made_by = {number: place for place, operation in enumerate(trace.operations) for number in operation.results}
    colors = operation_classes(trace, made_by, variable)
    keys: list[Hashable] = []
    for number, tensor in enumerate(trace.tensors):
        if tensor.path:
            keys.append((variable(tensor.path), tensor.shape))
        elif number in made_by:
            place = made_by[number]
            keys.append((colors[place], trace.operations[place].results.index(number)))
        else:
            keys.append(("given", number) if tensor.has_gradient else ("given", tensor.shape, tensor.dtype))
    return numbered(keys)


def operation_classes(trace: Trace, made_by: Mapping[int, int], variable: Callable[[str], Hashable]) -> list[int]:
    """For each operation the number of its class, by refinement (Weisfeiler and Leman, 1968).

    Args:
        trace: of a model.
        made_by: for each tensor that an operation makes, the place of that.
        variable: what is equal for paths of variables that are alike.
    """
    tensors = trace.tensors

    def first(operation: Operation) -> Hashable:
        shapes = tuple(tensors[number].shape if number >= 0 else None for number in operation.operands)
        variables = tuple(variable(tensors[n].path) if n >= 0 else None for n in operation.operands)
        makes = tuple(tensors[number].shape for number in operation.results)
        return operation.name, without_numbers(operation.layer), shapes, variables, makes, operation.named

    colors = numbered([first(operation) for operation in trace.operations])
    readers: dict[int, list[int]] = {}
    for place, operation in enumerate(trace.operations):
        for number in operation.operands:
            readers.setdefault(number, []).append(place)
    for _ in range(ROUNDS):
        colors = numbered(
            [
                (
                    colors[place],
                    tuple(colors[made_by[n]] if n in made_by else -1 for n in operation.operands),
                    tuple(sorted(colors[reader] for n in operation.results for reader in readers.get(n, ()))),
                )
                for place, operation in enumerate(trace.operations)
            ]
        )
    return colors


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

    Columns before rows cost half of what columns before columns do, so that equal layers in a row need two layouts.

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


def layer_of(path: str) -> str:
    """The path of a variable's layer."""
    return path.rpartition("/")[0]
