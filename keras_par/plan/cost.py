"""The time and memory of a training step whose variables lie in a given way, operation by operation."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from keras_par.plan.case import Collective
from keras_par.plan.layout import Axes
from keras_par.plan.machine import crossing_bytes
from keras_par.plan.reading import blocks, held, held_again, read
from keras_par.plan.trace import Aside, Trace
from keras_par.plan.training_setup import Setting
from keras_par.plan.variable_cost import BUCKET_BYTES, Upkeep, Use, uses

PARTS = ("variables", "slots", "activations", "gradients", "sums", "recomputed", "passing", "gathered")


@dataclass
class Moment:
    """The backward pass of one operation.

    Args:
        kept: bytes that this operation is the first to keep, which go after it.
        passing: that are taken while it is under way, and by gradients of tensors that wait for earlier operations.
        recomputed: that its layer takes, if it is computed once more.
        gradients: of variables that no later operation reads, whose gradients begin here.
        sums: that these take while they are summed, each by itself.
        shared: that these give to messages that they share.
    """

    kept: int = 0
    passing: int = 0
    recomputed: int = 0
    gradients: int = 0
    sums: int = 0
    shared: int = 0


def most_held(moments: Sequence[Moment], bucket_bytes: int) -> dict[str, int]:
    """The parts of what is held when that is most, in bytes.

    Args:
        moments: of all operations, in the order of the forward pass.
        bucket_bytes: of a message.
    """
    gradients = sums = shared = 0
    activations = sum(moment.kept for moment in moments)
    parts = []
    for moment in reversed(moments):
        gradients += moment.gradients
        sums += moment.sums
        shared += moment.shared
        held = {"activations": activations, "gradients": gradients, "sums": sums + min(shared, bucket_bytes)}
        parts.append({**held, "recomputed": moment.recomputed, "passing": moment.passing})
        activations -= moment.kept
    return max(parts, key=lambda held: sum(held.values()))


def waiting(flowing: Sequence[Mapping[int, int]]) -> list[int]:
    """For each operation the bytes of gradients that later ones have made and earlier ones want.

    Args:
        flowing: for each operation the tensors whose gradients it takes or gives, with their bytes.
    """
    changes, last = [0] * (len(flowing) + 1), dict[int, int]()
    for place, sizes in enumerate(flowing):
        for number, size in sizes.items():
            if number in last:
                changes[last[number] + 1] += size
                changes[place] -= size
            last[number] = place
    return list(accumulate(changes[:-1]))


@dataclass
class Prediction:
    """Of one training step, on the rank that has most to do.

    Args:
        seconds: of the step.
        by_layer: seconds of each layer's operations and collectives.
        num_bytes: the largest that a rank holds at a time.
        parts: of these bytes, at the moment of the backward pass when a rank holds most: variables and slots;
            "activations" that are still kept, and "gradients" that are there already, with their "sums" that are under
            way; "recomputed", of the layer whose turn it is; "passing", of the operation whose turn it is, and of
            gradients that wait for earlier ones; and "gathered", of the largest tensor, and of the two largest weights
            or gradients that a stage of ZeRO lets go.
        collectives: each kind and its bytes, in the order of the forward pass, without sums of gradients.
        gradient_bytes: that a rank gives to sums of gradients, and to gathers of what it has updated.
        crossing_bytes: of all of these, that a rank sends to the next one of a ring.
    """

    seconds: float = 0.0
    by_layer: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    num_bytes: int = 0
    parts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PARTS, 0))
    collectives: list[tuple[Collective, int, str]] = field(default_factory=list)
    gradient_bytes: int = 0
    crossing_bytes: float = 0.0

    @property
    def held(self) -> dict[str, int]:
        """The parts of the bytes that are not 0."""
        return {name: size for name, size in self.parts.items() if size}


def predict(
    trace: Trace,
    stored: Mapping[str, Axes],
    setting: Setting,
    recomputed: Collection[str] = (),
) -> Prediction:
    """The step of a model whose variables lie so; those that are not named are whole.

    Args:
        trace: of the model.
        stored: by path.
        setting: where it is trained.
        recomputed: names of layers that are computed once more in the backward pass.
    """
    found = Prediction()
    variables = upkeeps(trace, stored, setting, recomputed)
    moments = note_operations(found, trace, stored, setting, recomputed)
    note_variables(found, variables, setting)
    add_gradients(moments, trace, variables)
    found.parts.update(most_held(moments, BUCKET_BYTES))
    found.parts["slots"] += trace.other_bytes
    for aside in trace.asides:
        found.by_layer[aside.layer] += aside_seconds(aside, setting)
        found.parts["activations"] += int(aside.kept_bytes * setting.num_rows)
    found.num_bytes = sum(found.parts.values())
    found.seconds = setting.machine.step_seconds + sum(found.by_layer.values())
    return found


def note_operations(
    found: Prediction, trace: Trace, stored: Mapping[str, Axes], setting: Setting, recomputed: Collection[str]
) -> list[Moment]:
    """Adds what operations cost and send; returns what is held in the backward pass of each, and before all of them."""
    layouts: dict[int, Axes] = {
        number: stored[tensor.path] for number, tensor in enumerate(trace.tensors) if any(stored.get(tensor.path, ()))
    }
    done: set[tuple] = set()
    kept: set[tuple[int, int]] = set()
    again: dict[str, int] = defaultdict(int)  # what each layer takes that is computed once more
    moments, flowing = [], []
    made_in, largest = blocks(trace), 0
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
        again[operation.block] += holds.passing_bytes
        new = dict(holds.kept.items() - kept)
        kept.update(new.items())
        moments.append(Moment(sum(new.values()) + holds.inner_bytes, made.work.passing_bytes))
        flowing.append(made.work.flowing)
    for moment, operation, num_bytes in zip(moments, trace.operations, waiting(flowing), strict=True):
        moment.passing += num_bytes
        moment.recomputed = again[operation.block]
    found.parts["gathered"] = largest
    return [*moments, Moment()]


def note_sent(found: Prediction, collectives: Sequence[tuple[Collective, int]], num_ranks: int, layer: str) -> None:
    """Adds collectives among so many ranks."""
    found.collectives += [(kind, size, layer) for kind, size in collectives]
    found.crossing_bytes += sum(crossing_bytes(kind, size, num_ranks) for kind, size in collectives)


def upkeeps(trace: Trace, stored: Mapping[str, Axes], setting: Setting, recomputed: Collection[str]) -> list[Upkeep]:
    """What each variable costs and takes."""
    used = uses(trace, setting.num_rows, recomputed)
    return [
        Upkeep(each, stored.get(each.path) or (None,) * len(each.shape), setting, used.get(each.path, Use()))
        for each in trace.parameters
    ]


def note_variables(found: Prediction, variables: Sequence[Upkeep], setting: Setting) -> None:
    """Adds what variables cost, and what they take all the time or for two layers."""
    windows, num_shares = [0, 0], setting.mesh[setting.data_axis]
    for variable in variables:
        layer = variable.parameter.path.rpartition("/")[0]
        found.by_layer[layer] += variable.seconds
        note_sent(found, variable.gathers, num_shares, layer)
        for kind, size in variable.sums:
            found.gradient_bytes += size
            found.crossing_bytes += crossing_bytes(kind, size, num_shares)
        for name in ("variables", "slots"):
            found.parts[name] += variable.held[name]
        if variable.is_whole_at_times:
            windows.append(variable.whole_bytes)
    found.parts["gathered"] += sum(sorted(windows)[-2:])


def add_gradients(moments: Sequence[Moment], trace: Trace, variables: Sequence[Upkeep]) -> None:
    """Adds gradients to the moments when they begin: each to that of the last operation that reads its variable."""
    last = last_readers(trace)
    for variable in variables:
        moment, held_bytes = moments[last.get(variable.parameter.path, -1)], variable.held
        moment.gradients += held_bytes["gradients"]
        moment.sums += held_bytes["sums"]
        moment.shared += variable.shared_bytes


def last_readers(trace: Trace) -> dict[str, int]:
    """For each variable that an operation reads the place of the last one."""
    read_by = (
        (trace.tensors[number].path, place)
        for place, each in enumerate(trace.operations)
        for number in each.operands
        if number >= 0
    )
    return {path: place for path, place in read_by if path}


def aside_seconds(aside: Aside, setting: Setting) -> float:
    """Of what has no rule."""
    flops, num_bytes = aside.flops * setting.num_rows, aside.num_bytes * setting.num_rows
    return setting.machine.compute_seconds(flops, num_bytes, aside.num_kernels)
