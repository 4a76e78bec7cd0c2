"""The time and memory of a training step whose variables lie in a given way, operation by operation."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from keras_par.plan.case import Collective
from keras_par.plan.layout import Axes
from keras_par.plan.machine import crossing_bytes
from keras_par.plan.options import Options
from keras_par.plan.reading import read, seen
from keras_par.plan.recomputing import blocks, held, held_again
from keras_par.plan.setting import Setting
from keras_par.plan.trace import Aside, Parameter, Trace, shape_at

TAKE = "numpy.take"
INDEX_BYTES = 4  # of the number of a row


@dataclass
class Prediction:
    """Of one training step, on the rank that has most to do.

    Args:
        seconds: of the step.
        by_layer: seconds of each layer's operations and collectives.
        num_bytes: the largest that a rank holds at a time.
        parts: of the bytes: variables, gradients and slots; "activations", which are kept for the backward pass;
            "recomputed" and "passing", of the layer and of the operation that take most while theirs is under way;
            "gathered", of the largest tensor; and "sums" of gradients that are under way at a time.
        collectives: each kind and its bytes, in the order of the forward pass, without sums of gradients.
        gradient_bytes: that a rank gives to sums of gradients, and to gathers of what it has updated.
        crossing_bytes: of all of these, that a rank sends to the next one of a ring.
    """

    seconds: float = 0.0
    by_layer: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_bytes: int = 0
    parts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    collectives: list[tuple[Collective, int, str]] = field(default_factory=list)
    gradient_bytes: int = 0
    crossing_bytes: float = 0.0

    @property
    def held(self) -> dict[str, int]:
        """The parts of the bytes that are not 0."""
        return {name: size for name, size in self.parts.items() if size}


def update_seconds(
    parameter: Parameter, stored: Axes, setting: Setting, sparse_rows: int | None = None, in_parts: bool = False
) -> float:
    """Of the bytes of the sum of a variable's gradient, which shares messages with others, and of its update.

    With `in_parts` each rank updates a part of it, which all get.
    """
    if not parameter.is_trainable:
        return 0
    machine, axis = setting.machine, setting.data_axis
    num_bytes = setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    slots = setting.local_elements((parameter.slot_bytes,), stored)
    num_parts = setting.mesh[axis] if in_parts else 1
    seconds = update_bytes(num_bytes, slots) / num_parts / machine.update_bytes_per_second + machine.kernel_seconds
    if axis not in stored:
        sums = gradient_sums(parameter, stored, setting, sparse_rows, in_parts)
        reach, size = setting.reach(axis), setting.mesh[axis]
        seconds += machine.overlap * sum(machine.byte_seconds(kind, sent, size, reach) for kind, sent in sums)
    return seconds


def update_bytes(num_bytes: int, slot_bytes: int) -> int:
    """What is read and written at least to update a variable: it and its slots both ways, its gradient one way."""
    return 3 * num_bytes + 2 * slot_bytes


def gradient_sums(
    parameter: Parameter, stored: Axes, setting: Setting, sparse_rows: int | None, in_parts: bool
) -> list[tuple[Collective, int]]:
    """How the gradients of ranks with other rows become one: of a table of which rows are read these are gathered.

    Of a variable that is updated in parts each rank gets its part of the sum, and gives its part of the new value.
    """
    own = setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    if in_parts:
        return [("reduce_scatter", own), ("all_gather", own // setting.mesh[setting.data_axis])]
    if sparse_rows is None:
        return [("all_reduce", own)]
    row = setting.local_elements(parameter.shape[1:], stored[1:]) * parameter.item_bytes
    return [("all_gather", sparse_rows * (row + INDEX_BYTES))]


def held_bytes(parameter: Parameter, stored: Axes, setting: Setting, in_parts: bool = False) -> dict[str, int]:
    """What a rank holds of a variable, its gradient and its slots."""
    own = setting.local_elements(parameter.shape, stored) * parameter.item_bytes
    slots = setting.local_elements((parameter.slot_bytes,), stored)
    slots //= setting.mesh[setting.data_axis] if in_parts else 1
    return {"variables": own, "gradients": own if parameter.is_trainable else 0, "slots": slots}


def predict(
    trace: Trace,
    stored: Mapping[str, Axes],
    setting: Setting,
    recomputed: Collection[str] = (),
    in_parts: Collection[str] = (),
) -> Prediction:
    """The step of a model whose variables lie so; those that are not named are whole.

    Args:
        trace: of the model.
        stored: by path.
        setting: where it is trained.
        recomputed: names of layers that are computed once more in the backward pass.
        in_parts: paths of the variables of which each rank with other rows updates a part.
    """
    found = Prediction()
    note_operations(found, trace, stored, setting, recomputed)
    for aside in trace.asides:
        found.by_layer[aside.layer] += aside_seconds(aside, setting)
        found.parts["activations"] += int(aside.kept_bytes * setting.num_rows)
    note_variables(found, trace, stored, setting, in_parts)
    found.num_bytes = sum(found.parts.values())
    found.seconds = setting.machine.step_seconds + sum(found.by_layer.values())
    return found


def note_operations(
    found: Prediction, trace: Trace, stored: Mapping[str, Axes], setting: Setting, recomputed: Collection[str]
) -> None:
    """Adds what operations cost, send and keep."""
    layouts: dict[int, Axes] = {
        number: stored[tensor.path] for number, tensor in enumerate(trace.tensors) if any(stored.get(tensor.path, ()))
    }
    done: set[tuple] = set()
    kept: set[tuple[int, int]] = set()
    passing: dict[str, int] = defaultdict(int)
    made_in, largest, widest = blocks(trace), 0, 0
    for operation in trace.operations:
        made = read(operation, trace.tensors, layouts, setting)
        layouts.update(zip(operation.results, made.outcome.results, strict=True))
        holds = held(made)
        if operation.block and operation.block in recomputed:
            holds = held_again(operation, made, trace.tensors, made_in, layouts, setting)
        seconds = setting.machine.compute_seconds(made.work.flops, made.work.num_bytes, made.work.num_kernels)
        for sent in made.sent:
            key = sent.kind, sent.axis, sent.once, sent.num_elements
            if sent.once is None or key not in done:
                done.add(key)
                seconds += setting.sent_seconds(sent)
                largest = max(largest, sent.num_after * sent.item_bytes)
                note_sent(found, sent.collectives, setting.mesh[sent.axis], operation.layer)
        for sent in holds.sent:
            note_sent(found, sent.forward, setting.mesh[sent.axis], operation.layer)
        found.by_layer[operation.layer] += seconds + holds.seconds
        found.parts["activations"] += holds.inner_bytes
        passing[operation.block] += holds.passing_bytes
        kept.update(holds.kept.items())
        widest = max(widest, made.work.passing_bytes)
    found.parts["activations"] += sum(size for _, size in kept)
    found.parts["recomputed"] = max(passing.values(), default=0)
    found.parts["passing"] = widest
    found.parts["gathered"] = largest


def note_sent(found: Prediction, collectives: Sequence[tuple[Collective, int]], num_ranks: int, layer: str) -> None:
    """Adds collectives among so many ranks."""
    found.collectives += [(kind, size, layer) for kind, size in collectives]
    found.crossing_bytes += sum(crossing_bytes(kind, size, num_ranks) for kind, size in collectives)


def note_variables(
    found: Prediction, trace: Trace, stored: Mapping[str, Axes], setting: Setting, in_parts: Collection[str]
) -> None:
    """Adds what variables cost and take."""
    sparse = sparse_rows(trace, setting.num_rows)
    for parameter in trace.parameters:
        axes = stored.get(parameter.path) or (None,) * len(parameter.shape)
        rows, has_parts = sparse.get(parameter.path), parameter.path in in_parts
        found.by_layer[parameter.path.rpartition("/")[0]] += update_seconds(parameter, axes, setting, rows, has_parts)
        num_shares = setting.mesh[setting.data_axis]
        if parameter.is_trainable and setting.data_axis not in axes and num_shares > 1:
            for kind, size in gradient_sums(parameter, axes, setting, rows, has_parts):
                found.gradient_bytes += size
                found.crossing_bytes += crossing_bytes(kind, size, num_shares)
        for name, size in held_bytes(parameter, axes, setting, has_parts).items():
            found.parts[name] += size
        if parameter.is_trainable and setting.data_axis in axes:
            found.parts["sums"] += whole_gradient_bytes(parameter, axes, setting)
    found.parts["sums"] += min(found.gradient_bytes, int(Options.fusion_mb * 2**20))
    found.parts["slots"] += trace.other_bytes


def whole_gradient_bytes(parameter: Parameter, stored: Axes, setting: Setting) -> int:
    """Bytes of a gradient whose sum is divided along the data axis, before it is."""
    return setting.local_elements(parameter.shape, seen(stored, setting.data_axis)) * parameter.item_bytes


def aside_seconds(aside: Aside, setting: Setting) -> float:
    """Of what has no rule."""
    flops, num_bytes = aside.flops * setting.num_rows, aside.num_bytes * setting.num_rows
    return setting.machine.compute_seconds(flops, num_bytes, aside.num_kernels)


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
