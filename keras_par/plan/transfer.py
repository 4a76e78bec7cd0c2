"""What an operation of a trace makes of divided tensors: the layouts of its results, and what is sent for that."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from keras_par.plan.case import Case, Outcome, Sent
from keras_par.plan.division import Named, divide, sums
from keras_par.plan.layout import Axes
from keras_par.plan.trace import ASSIGN, Operation, Steps, Tensor


def transfer(
    operation: Operation,
    tensors: Sequence[Tensor],
    layouts: Mapping[int, Axes],
    sizes: Mapping[str, int],
    num_rows: int,
) -> Outcome:
    """What becomes of an operation; see `Case` for the arguments."""
    case = Case(operation, tensors, layouts, sizes, num_rows)
    reads = [number for number in dict.fromkeys(operation.operands) if number >= 0]
    if not any(any(case.axes(number)) for number in reads):
        return case.outcome()
    if operation.name == ASSIGN:  # what a variable gets becomes whole unless it is divided as that is
        value, variable = reads
        reads = [] if case.axes(value) == case.axes(variable) else [value]
    if operation.named is not None:
        return by_names(case, operation.named)
    for number in reads:
        case.gather(number)
    return case.outcome()


def by_names(case: Case, named: Named) -> Outcome:
    """An operation that names its dims."""
    operation, size_of = case.operation, case.sizes.__getitem__
    layouts = [case.axes(n) if names else () for n, names in zip(operation.operands, named.operands, strict=True)]
    division = divide(named, layouts, size_of)
    if not division.is_as_named and operation.steps is not None:
        return by_steps(case, operation.steps, divide(replace(named, undivided=()), layouts, size_of).axis_of)
    for number, names, moves, axes in zip(operation.operands, named.operands, division.operands, layouts, strict=True):
        if number >= 0 and (names or case.tensors[number].shape == ()):
            case.move(number, moves, case.local(number, axes))
    combined, axes = sums(named, division)
    for number in operation.results:
        case.move(number, combined, case.local(number, axes))
    return case.outcome(*[axes] * len(operation.results), axis_of=division.axis_of)


def by_steps(case: Case, steps: Steps, axis_of: Mapping) -> Outcome:
    """An operation that is made of others where its dims are divided so."""
    operands = dict(zip(steps.operands, case.operation.operands, strict=True))
    layouts = {inner: case.axes(number) for inner, number in operands.items() if number >= 0}
    is_wanted = case.is_wanted and any(case.tensors[n].has_gradient for n in case.operation.operands if n >= 0)

    def within(sent: Sent) -> Sent:
        once = None if sent.once is None else operands.get(sent.once)
        return replace(sent, has_gradient=sent.has_gradient and is_wanted, once=once)

    for step in steps.operations:
        outcome = transfer(step, steps.tensors, layouts, case.sizes, case.num_rows)
        layouts.update(zip(step.results, outcome.results, strict=True))
        case.sent.extend(map(within, outcome.sent))
    return case.outcome(*(layouts[number] for number in steps.results), axis_of=axis_of)
