"""What an operation of a trace does on a rank, with variables as they are stored, and what it keeps for going back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_par.plan.case import Outcome, Sent
from keras_par.plan.layout import Axes
from keras_par.plan.operation_cost import Work, work_of
from keras_par.plan.trace import Operation, Tensor, Trace, shape_at
from keras_par.plan.training_setup import Setting
from keras_par.plan.transfer import transfer

CAST = "core.cast"


@dataclass(frozen=True)
class Read:
    """What an operation does on a rank: what it makes, how much it works, what is sent for it, and what is kept.

    Args:
        outcome: what it makes.
        work: of it.
        sent: with the gathering of its variables.
        kept: bytes for the backward pass, by the number of the tensor whose memory that is; several operations may keep
            the same. Variables are in it where they are gathered.
    """

    outcome: Outcome
    work: Work
    sent: tuple[Sent, ...]
    kept: Mapping[int, int]


def seen(stored: Axes, data_axis: str) -> Axes:
    """The layout that operations see of a variable: it is gathered along the data axis where it is read."""
    return tuple(None if axis == data_axis else axis for axis in stored)


def read(
    operation: Operation,
    tensors: Sequence[Tensor],
    layouts: Mapping[int, Axes],
    setting: Setting,
) -> Read:
    """An operation whose operands are divided so; variables as they are stored."""
    gathered: list[Sent] = []
    known = dict(layouts)
    for number in dict.fromkeys(operation.operands):
        if number >= 0 and tensors[number].path and setting.data_axis in layouts.get(number, ()):
            gathered.append(gathering(operation, tensors, number, layouts[number], setting))
            known[number] = seen(layouts[number], setting.data_axis)
    outcome = transfer(operation, tensors, known, setting.mesh, setting.num_rows)
    work = work_of(operation, tensors, known, outcome, setting.mesh, setting.num_rows)
    kept = {
        root(tensors, number): size
        for number, size in work.kept.items()
        if known.get(number) != layouts.get(number) or not tensors[root(tensors, number)].path
    }
    return Read(outcome, work, (*gathered, *outcome.sent), kept)


def root(tensors: Sequence[Tensor], number: int) -> int:
    """The tensor in whose memory another is."""
    within = tensors[number].within
    return number if within is None else within


def gathering(operation: Operation, tensors: Sequence[Tensor], number: int, stored: Axes, setting: Setting) -> Sent:
    """The gathering of a variable along the data axis; it is cast first where it is."""
    tensor = tensors[number]
    is_cast = operation.name == CAST
    like = tensors[operation.results[0]] if is_cast else tensor
    before = setting.local_elements(tensor.shape, stored)
    after = before * setting.mesh[setting.data_axis]
    dim = stored.index(setting.data_axis)
    return Sent(
        "gather_and_enter", setting.data_axis, before, after, like.item_bytes, tensor.has_gradient, None, True, dim
    )


@dataclass(frozen=True)
class Held:
    """What an operation keeps for its backward pass, and what it costs not to keep more.

    Args:
        kept: bytes, by the number of the tensor whose memory that is; several operations may keep the same.
        inner_bytes: of tensors of its own.
        passing_bytes: that are taken only while the backward pass of its layer is under way.
        seconds: of a second forward pass.
        sent: in a second forward pass.
    """

    kept: Mapping[int, int]
    inner_bytes: int
    passing_bytes: int = 0
    seconds: float = 0.0
    sent: tuple[Sent, ...] = ()


def held(made: Read) -> Held:
    """By an operation that is computed once."""
    return Held(made.kept, made.work.inner_bytes)


def blocks(trace: Trace) -> dict[int, str]:
    """For each tensor that a layer makes that can be computed once more, the name of that layer."""
    return {
        number: operation.block for operation in trace.operations for number in operation.results if operation.block
    }


def held_again(
    operation: Operation,
    made: Read,
    tensors: Sequence[Tensor],
    made_in: Mapping[int, str],
    layouts: Mapping[int, Axes],
    setting: Setting,
) -> Held:
    """By an operation whose layer is computed once more: what other layers gave it.

    Args:
        operation: of such a layer.
        made: what it does.
        tensors: of the trace.
        made_in: as `blocks` has it.
        layouts: of its operands.
        setting: where.
    """

    def num_bytes(number: int) -> int:
        shape = shape_at(tensors[number].shape, setting.num_rows)
        return setting.local_elements(shape, layouts.get(number, ())) * tensors[number].item_bytes

    given = {number for number in operation.operands if number >= 0 and made_in.get(number) != operation.block}
    kept = {root(tensors, number): num_bytes(number) for number in given if not tensors[root(tensors, number)].path}
    passing = sum(size for number, size in made.kept.items() if number not in kept) + made.work.inner_bytes
    machine, work = setting.machine, made.work
    seconds = machine.compute_seconds(work.forward_flops, work.forward_bytes, 1)
    seconds += sum(setting.forward_seconds(sent) for sent in made.sent)
    return Held(kept, 0, passing, seconds, made.sent)
