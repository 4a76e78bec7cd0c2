"""What an operation of a trace makes of divided tensors: the layouts of its results, and what is sent for that.

Most operations name their dims and go by `plan.division`, as they do when they run; the others are below, one function
each, for what `sharding.rules` does with them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_par.plan.case import Case, Outcome
from keras_par.plan.division import divide, sums
from keras_par.plan.indexing import indexed
from keras_par.plan.layout import Axes
from keras_par.plan.reshaping import reshaped
from keras_par.plan.trace import ASSIGN, LOGITS, Operation, Shape, Tensor, TensorArgument


def transfer(
    operation: Operation,
    tensors: Sequence[Tensor],
    layouts: Mapping[int, Axes],
    sizes: Mapping[str, int],
    num_rows: int,
) -> Outcome:
    """What becomes of an operation; see `Case` for the arguments."""
    case = Case(operation, tensors, layouts, sizes, num_rows)
    reads = {number for number in operation.operands if number >= 0}
    if not any(any(case.axes(number)) for number in reads):
        return case.outcome(*case.whole_results())
    if operation.name in UNNAMED:
        return UNNAMED[operation.name](case)
    return by_names(case) if operation.named is not None else made_whole(case)


def by_names(case: Case) -> Outcome:
    """An operation that names its dims."""
    operation, named = case.operation, case.operation.named
    assert named is not None
    numbers = [number for number in operation.operands if number >= 0]
    labels = [names for names, number in zip(named.operands, operation.operands, strict=True) if number >= 0]
    layouts = [case.axes(number) if names else () for number, names in zip(numbers, labels, strict=True)]
    division = divide(layouts, labels, named.result, named.undivided)
    for number, names, moves, axes in zip(numbers, labels, division.operands, layouts, strict=True):
        if names or case.tensors[number].shape == ():
            case.move(number, moves, case.local(case.shape(number), axes) if names else ())
    totals, _ = sums(division, named.result, lambda axes, axis: False)
    [result] = operation.results
    shape = case.local(case.shape(result), division.result)
    for move in totals:
        case.send(move.kind, move.axis, shape, result)
    return case.outcome(division.result, axis_of=division.axis_of)


def made_whole(case: Case) -> Outcome:
    """An operation without a rule: its operands become whole."""
    for number in dict.fromkeys(case.operation.operands):
        if number >= 0:
            case.gather(number)
    return case.outcome(*case.whole_results())


def kept(case: Case) -> Outcome:
    """Shards stay shards."""
    return case.outcome(case.axes(case.operation.operands[0]))


def reshape(case: Case) -> Outcome:
    """See `plan.reshaping`."""
    number, new = case.operation.operands[0], case.argument("newshape")
    is_known = not isinstance(new, TensorArgument)
    sizes = (new,) if isinstance(new, int) else new
    found = reshaped(case.shape(number), case.axes(number), sizes, case.sizes.__getitem__) if is_known else None
    return made_whole(case) if found is None else case.outcome(found[1])


def getitem(case: Case) -> Outcome:
    """See `plan.indexing`."""
    found = indexed(case.axes(case.operation.operands[0]), case.operation.arguments["index"])
    return made_whole(case) if found is None else case.outcome(found)


def split(case: Case) -> Outcome:
    """Along a dim that is not divided; else the tensor is whole."""
    axes = case.axes(case.operation.operands[0])
    if axes[case.argument("axis", 0)] is not None:
        return made_whole(case)
    return case.outcome(*[axes] * len(case.operation.results))


def dims_of(case: Case, name: str, default: Any = None) -> list[int]:
    """The dims that an argument means."""
    axes, given = case.axes(case.operation.operands[0]), case.argument(name, default)
    listed = range(len(axes)) if given is None else given if isinstance(given, tuple) else [given]
    return sorted(dim % len(axes) for dim in listed)


def lines(case: Case, dims: Sequence[int]) -> tuple[Shape, list[str]]:
    """The shape of this rank's shard reduced along `dims`, and the axes that divide these."""
    number = case.operation.operands[0]
    axes = case.axes(number)
    shape = case.local(case.shape(number), axes)
    line = tuple(1 if dim in dims else size for dim, size in enumerate(shape))
    return line, [axis for dim, axis in enumerate(axes) if dim in dims and axis is not None]


def softmax(case: Case) -> Outcome:
    """The largest element of each line, and the sum of the powers; the latter's gradient comes back."""
    number, dims = case.operation.operands[0], dims_of(case, "axis", -1)
    line, axes = lines(case, dims)
    for axis in axes:
        case.send("largest", axis, line, number)
        case.send("total", axis, line, number)
        case.send("enter", axis, line, number)
    return kept(case)


def moments(case: Case) -> Outcome:
    """Mean and variance, by a sum each; the mean is subtracted, so that its gradient comes back."""
    return deviations(case, "axes", 2)


def variance(case: Case) -> Outcome:
    """A mean, and the mean of squared distances from that."""
    return deviations(case, "axis", 1)


def deviations(case: Case, name: str, num_results: int) -> Outcome:
    """The variance and what comes with it."""
    number, dims = case.operation.operands[0], dims_of(case, name)
    line, axes = lines(case, dims)
    for axis in axes:
        for _ in range(num_results + 1):  # of these one for the mean within the variance
            case.send("total", axis, line, number)
        case.send("enter", axis, line, number)
    layout = case.axes(number)
    kept_dims = [None if dim in dims else axis for dim, axis in enumerate(layout)]
    left = [axis for dim, axis in enumerate(layout) if dim not in dims]
    result = tuple(kept_dims if case.argument("keepdims", False) else left)
    return case.outcome(*[result] * num_results)


def cross_entropy(case: Case) -> Outcome:
    """Two sums of numbers a row if the classes are divided and nothing else is."""
    logits = case.operation.arguments.get(LOGITS)
    if logits is None and case.operation.arguments.get("from_logits", False):
        logits = case.operation.arguments["output"]
    number = -1 if logits is None else logits.number
    axes = case.axes(number) if number >= 0 else (None,)
    if axes[-1] is None or any(axes[:-1]):
        return made_whole(case)
    shape = case.local(case.shape(number), axes)
    case.send("largest", axes[-1], (*shape[:-1], 1), number)
    case.send("total", axes[-1], (2, *shape[:-1]), number)
    return case.outcome(*case.whole_results())


def assign(case: Case) -> Outcome:
    """What a variable gets becomes whole unless it is divided as the variable is."""
    value, variable = case.operation.operands
    if case.axes(value) != case.axes(variable):
        case.gather(value)
    return case.outcome()


UNNAMED: dict[str, Callable[[Case], Outcome]] = {
    ASSIGN: assign,
    "core.cast": kept,
    "core.convert_to_tensor": kept,
    "getitem": getitem,
    "nn.log_softmax": softmax,
    "nn.moments": moments,
    "nn.softmax": softmax,
    "nn.categorical_crossentropy": cross_entropy,
    "nn.sparse_categorical_crossentropy": cross_entropy,
    "numpy.reshape": reshape,
    "numpy.split": split,
    "numpy.std": variance,
    "numpy.var": variance,
    "random.dropout": kept,
}
