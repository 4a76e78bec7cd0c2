"""What a step of a plan would take: its predicted seconds, the memory of a rank, and what the prediction leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_par.distribution.describe import Description
from keras_par.keras_patches.trainer.abstract_step import as_if_unbuilt
from keras_par.plan.cost import Prediction, predict
from keras_par.plan.layout import matches
from keras_par.plan.machine import Machine
from keras_par.plan.options import Options
from keras_par.plan.reading import seen as seen_by_operations
from keras_par.plan.trace import Trace
from keras_par.plan.training_setup import Setting
from keras_par.planning.model_file import build_from
from keras_par.searching.explain import held, milliseconds
from keras_par.searching.known_machines import machine_of, measured_here
from keras_par.searching.model_trace import look_at


@dataclass(frozen=True)
class Outlook:
    """What a step would take.

    Args:
        machine: that it would run on, None where nothing is predicted.
        prediction: of the rank that has most to do, the same.
        hints: why nothing is predicted, or what the prediction leaves out; sentences.
    """

    machine: Machine | None = None
    prediction: Prediction | None = None
    hints: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As JSON can carry it."""
        found = None
        if self.machine is not None and self.prediction is not None:
            found = {
                "machine": self.machine.name,
                "seconds": self.prediction.seconds,
                "bytes": self.prediction.num_bytes,
                "parts": self.prediction.parts,
                "layers": self.prediction.by_layer,
                "sent_bytes": counted_bytes(self.prediction),
            }
        return {"prediction": found}

    def __str__(self) -> str:
        lines = list(self.hints)
        if self.machine is not None and self.prediction is not None:
            time = f"Predicted for the machine '{self.machine.name}': {milliseconds(self.prediction.seconds)} a step."
            lines = [f"{time} {held(self.prediction)}", *lines]
        return "\n".join(lines)


def nothing(why: str) -> Outlook:
    """Where nothing is predicted."""
    return Outlook(hints=(f"No time and memory are predicted: {why}",))


def look(place: str, sizes: Sequence[int], machine: str | None) -> tuple[Trace, Machine] | Outlook:
    """The trace of the model that FILE:FUNCTION returns, without making its weights, and the machine; or why not.

    Args:
        place: of the function.
        sizes: of the dims that the model's inputs leave open, in their order.
        machine: a file or a name, None for the one that was measured here.

    Raises:
        ValueError: there is no such machine.
    """
    if machine is None and not measured_here().is_file():
        return nothing("this machine was not measured: run 'keras-par calibrate', or give --machine.")
    known = machine_of(machine)
    try:
        with as_if_unbuilt():
            return look_at(lambda: build_from(place), sizes), known
    except Exception as error:  # of the model's own, too: it may want values, which it has where it is planned
        return nothing(str(error).removeprefix("keras-par: ") or type(error).__name__)


def outlook(
    seen: tuple[Trace, Machine] | Outlook,
    description: Description,
    data_axis: str,
    num_ranks: int,
    batch_size: int,
    options: Options,
) -> Outlook:
    """What a step would take with the layouts of a plan.

    Args:
        seen: as `look` has it.
        description: of the plan, whose variables say their layouts.
        data_axis: along which ranks have other rows.
        num_ranks: of the job.
        batch_size: rows on all ranks together.
        options: the strategy's.
    """
    if isinstance(seen, Outlook):
        return seen
    trace, machine = seen
    stored = {row.path: row.axes for row in description.variables if any(row.axes)}
    unknown = next(iter(stored.keys() - {parameter.path for parameter in trace.parameters}), None)
    if unknown is not None:
        return nothing(f"a second model of the function has no variable '{unknown}': give its layers names.")
    if options.zero_ranks is not None:
        return nothing("nothing is known of replicas, which zero_ranks makes.")
    mesh = description.mesh or {data_axis: num_ranks}
    blocks = {operation.block for operation in trace.operations if operation.block}
    again = {name for name in blocks if any(matches(pattern, name) for pattern in options.recompute)}
    if options.zero == 3:  # a layout along the data axis is what that stage made
        stored = {path: seen_by_operations(axes, data_axis) for path, axes in stored.items()}
    setting = Setting(machine, mesh, data_axis, batch_size, options.zero, options.zero_min_kb)
    found = predict(trace, stored, setting, again)
    calls = [call.num_bytes for call in description.collectives["train_step"]]
    counted, sent = counted_bytes(found), sum(size for size in calls if size is not None)
    hints = []
    if counted != sent:
        hints.append(f"The predicted time counts {counted:,} bytes of collectives, the traced step sends {sent:,}.")
    return Outlook(machine, found, tuple(hints))


def counted_bytes(prediction: Prediction) -> int:
    """That a rank gives to collectives in a step."""
    return sum(size for _, size, _ in prediction.collectives) + prediction.gradient_bytes
