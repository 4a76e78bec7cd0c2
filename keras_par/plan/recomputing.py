"""What it costs and saves to compute a layer once more in the backward pass, instead of keeping its tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_par.plan.case import Sent
from keras_par.plan.layout import Axes
from keras_par.plan.reading import Read, root
from keras_par.plan.trace import Operation, Tensor, Trace, shape_at
from keras_par.plan.training_setup import Setting


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
