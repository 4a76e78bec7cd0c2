"""What an operation of a trace does on a rank, with variables as they are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_par.plan.case import Outcome, Sent
from keras_par.plan.layout import Axes
from keras_par.plan.operation_cost import Work, work_of
from keras_par.plan.trace import Operation, Tensor
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
