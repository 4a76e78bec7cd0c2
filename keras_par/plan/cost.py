"""The time and memory of a training step whose variables lie in a given way, operation by operation."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from keras_par.plan.case import Collective, Outcome, Sent
from keras_par.plan.layout import Axes
from keras_par.plan.machine import Machine, Reach
from keras_par.plan.trace import Operation, Parameter, Tensor, Trace, shape_at
from keras_par.plan.transfer import transfer
from keras_par.plan.work import Work, work_of

CAST = "core.cast"
TAKE = "numpy.take"
INDEX_BYTES = 4  # of the number of a row


@dataclass(frozen=True)
class Setting:
    """Where a model is to be trained.

    Args:
        machine: of each host.
        mesh: the sizes of its axes, by name, row-major.
        data_axis: the one along which ranks have other rows.
        batch_size: rows on all ranks together.
    """

    machine: Machine
    mesh: Mapping[str, int]
    data_axis: str
    batch_size: int

    @property
    def num_ranks(self) -> int:
        """Of the mesh."""
        return math.prod(self.mesh.values())

    @property
    def num_rows(self) -> int:
        """On a rank."""
        return self.batch_size // self.mesh[self.data_axis]

    def reach(self, axis: str, kind: Collective) -> Reach:
        """Where the ranks along an axis are, if ranks fill host after host."""
        names = list(self.mesh)
        span = math.prod(self.mesh[name] for name in names[names.index(axis) :])  # ranks from a group's first to last
        if span > self.machine.ranks_per_host:
            return "network"
        return "job" if kind == "all_reduce" and self.mesh[axis] == self.num_ranks else "host"

    def sent_seconds(self, sent: Sent) -> float:
        """Of a move, forward and backward."""
        size = self.mesh[sent.axis]
        return sum(
            self.machine.send_seconds(kind, num_bytes, size, self.reach(sent.axis, kind), sent.is_aside)
            for kind, num_bytes in sent.collectives
        )

    def local_elements(self, shape: Sequence[int], axes: Axes) -> int:
        """Of a shard."""
        return math.prod(shape) // math.prod(self.mesh[axis] for axis in axes if axis is not None)


@dataclass(frozen=True)
class Read:
    """What an operation does on a rank: what it makes, how much it works, and what is sent for it."""

    outcome: Outcome
    work: Work
    sent: tuple[Sent, ...]


@dataclass
class Prediction:
    """Of one training step, on the rank that has most to do.

    Args:
        seconds: of the step.
        by_layer: seconds of each layer's operations and collectives.
        num_bytes: the largest that a rank holds at a time.
        parts: of the bytes: variables, gradients, slots, activations and what is gathered.
        collectives: each kind and its bytes, in the order of the forward pass, without sums of gradients.
        gradient_bytes: that a rank gives to sums of gradients.
    """

    seconds: float = 0.0
    by_layer: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_bytes: int = 0
    parts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    collectives: list[tuple[Collective, int, str]] = field(default_factory=list)
    gradient_bytes: int = 0


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
    return Read(outcome, work, (*gathered, *outcome.sent))


def gathering(operation: Operation, tensors: Sequence[Tensor], number: int, stored: Axes, setting: Setting) -> Sent:
    """The gathering of a variable along the data axis; it is cast first where it is."""
    tensor = tensors[number]
    is_cast = operation.name == CAST
    like = tensors[operation.results[0]] if is_cast else tensor
    before = setting.local_elements(tensor.shape, stored)
    after = before * setting.mesh[setting.data_axis]
    return Sent("gather_and_enter", setting.data_axis, before, after, like.item_bytes, tensor.has_gradient, None, True)


def update_seconds(parameter: Parameter, stored: Axes, setting: Setting, sparse_rows: int | None = None) -> float:
    """Of the bytes of the sum of a variable's gradient, which shares messages with others, and of its update."""
    if not parameter.is_trainable:
        return 0
    machine = setting.machine
    num_bytes = setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    slots = setting.local_elements((parameter.slot_bytes,), stored)
    seconds = update_bytes(num_bytes, slots) / machine.update_bytes_per_second + machine.kernel_seconds
    if setting.data_axis not in stored:
        kind, sent = gradient_sum(parameter, stored, setting, sparse_rows)
        axis = setting.data_axis
        seconds += machine.byte_seconds(kind, sent, setting.mesh[axis], setting.reach(axis, kind))
    return seconds


def update_bytes(num_bytes: int, slot_bytes: int) -> int:
    """What is read and written at least to update a variable: it and its slots both ways, its gradient one way."""
    return 3 * num_bytes + 2 * slot_bytes


def gradient_sum(
    parameter: Parameter, stored: Axes, setting: Setting, sparse_rows: int | None
) -> tuple[Collective, int]:
    """How the gradients of ranks with other rows become one: of a table of which rows are read these are gathered."""
    if sparse_rows is None:
        return "all_reduce", setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    row = setting.local_elements(parameter.shape[1:], stored[1:]) * parameter.item_bytes
    return "all_gather", sparse_rows * (row + INDEX_BYTES)


def held_bytes(parameter: Parameter, stored: Axes, setting: Setting) -> dict[str, int]:
    """What a rank holds of a variable, its gradient and its slots."""
    own = setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    slots = setting.local_elements((parameter.slot_bytes,), stored)
    return {"variables": own, "gradients": own if parameter.is_trainable else 0, "slots": slots}


def predict(trace: Trace, stored: Mapping[str, Axes], setting: Setting) -> Prediction:
    """The step of a model whose variables lie so; those that are not named are whole."""
    found = Prediction()
    layouts: dict[int, Axes] = {
        number: stored[tensor.path] for number, tensor in enumerate(trace.tensors) if any(stored.get(tensor.path, ()))
    }
    done: set[tuple] = set()
    kept: dict[tuple[int, int], None] = {}
    largest = 0
    for operation in trace.operations:
        made = read(operation, trace.tensors, layouts, setting)
        layouts.update(zip(operation.results, made.outcome.results, strict=True))
        seconds = setting.machine.compute_seconds(made.work.flops, made.work.num_bytes, made.work.num_kernels)
        for sent in made.sent:
            key = sent.kind, sent.axis, sent.once, sent.num_elements
            if sent.once is None or key not in done:
                done.add(key)
                seconds += setting.sent_seconds(sent)
                largest = max(largest, sent.num_after * sent.item_bytes)
                found.collectives += [(kind, size, operation.layer) for kind, size in sent.collectives]
        found.by_layer[operation.layer] += seconds
        kept.update(dict.fromkeys(item for item in made.work.kept.items() if not trace.tensors[item[0]].path))
    sparse = sparse_rows(trace, setting.num_rows)
    for parameter in trace.parameters:
        axes = stored.get(parameter.path) or (None,) * len(parameter.shape)
        found.by_layer[parameter.path.rpartition("/")[0]] += update_seconds(
            parameter, axes, setting, sparse.get(parameter.path)
        )
        if parameter.is_trainable and setting.data_axis not in axes and setting.mesh[setting.data_axis] > 1:
            found.gradient_bytes += gradient_sum(parameter, axes, setting, sparse.get(parameter.path))[1]
        for name, size in held_bytes(parameter, axes, setting).items():
            found.parts[name] += size
    found.parts["slots"] += trace.other_bytes
    found.parts["activations"] = sum(size for _, size in kept)
    found.parts["gathered"] = largest
    found.num_bytes = sum(found.parts.values())
    found.seconds = setting.machine.step_seconds + sum(found.by_layer.values())
    return found


def sparse_rows(trace: Trace, num_rows: int) -> dict[str, int]:
    """For each table that is read by rows only, how many a rank reads in a step."""
    found: dict[str, int] = {}
    others: set[str] = set()
    for operation in trace.operations:
        for number in operation.operands:
            path = trace.tensors[number].path if number >= 0 else ""
            if not path:
                continue
            if operation.name == TAKE and number == operation.operands[0]:
                result = trace.tensors[operation.results[0]]
                width = math.prod(trace.tensors[number].shape[1:])
                found[path] = found.get(path, 0) + math.prod(shape_at(result.shape, num_rows)) // width
            else:
                others.add(path)
    return {path: rows for path, rows in found.items() if path not in others}
