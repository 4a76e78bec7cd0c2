"""Shows how a model is divided: whole and local sizes of its variables, and the collectives of its steps."""

import dataclasses
import io
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from keras_par.base.sizes import size
from keras_par.comm.counted import Call
from keras_par.keras_patches.files.atomic_save import beside
from keras_par.keras_patches.models.binding import bound, optimizers_of
from keras_par.keras_patches.models.model_state import entries
from keras_par.keras_patches.models.summary import route
from keras_par.keras_patches.update.optimizer_slots import slots_by_variable
from keras_par.keras_patches.variables.layer_outputs import OutputRow
from keras_par.keras_patches.variables.layouts import said_by
from keras_par.sharding.variable_views import is_sharded, placement_of
from keras_par.sharding.zero_parts import has_own_part, part_shape

WIDTH = 120
MANY = 5  # ranks of a group that are no longer listed
OPEN_SIZES = "A ? is a size that the trace left open: 'keras-par plan --input-shape' or data of one shape fills it in."


@dataclasses.dataclass(frozen=True)
class VariableRow:
    """A variable: its shape and bytes on all ranks together and on this one."""

    path: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]  # for each dim the mesh axis that divides it
    said_by: str | None  # the layout map's pattern, None if it has none for it
    local_shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    local_bytes: int
    part_shape: tuple[int, ...] | None = None  # of the part that this rank updates, None if that is all it holds
    state_bytes: int = 0  # of the optimizer's state for it, on this rank
    is_gathered_on_use: bool = False  # True if zero=3 divides it

    @property
    def source(self) -> str:
        """A mark of what divides it, unless that is a pattern."""
        if self.said_by is not None or not any(self.axes):
            return ""
        return " (zero)" if self.is_gathered_on_use else " (follows)"


@dataclasses.dataclass(frozen=True)
class Description:
    """How a model is divided, as `kp.describe` found it; print it, or write it to a file."""

    model: str
    strategy: str
    mesh: dict[str, int]
    place: dict[str, int]  # this rank's
    variables: list[VariableRow]
    optimizer_bytes: int
    local_optimizer_bytes: int
    collectives: dict[str, list[Call]]  # of a step, by the method's name; steps that have not been traced are missing
    outputs: dict[str, list[OutputRow]]  # of the layers' calls, the same
    sums: str = ""  # which way the sums over ranks go, a sentence; empty where there are none

    @property
    def num_bytes(self) -> int:
        """Of the model's variables, on all ranks together."""
        return sum(row.num_bytes for row in self.variables)

    @property
    def local_bytes(self) -> int:
        """Of the model's variables, on this rank."""
        return sum(row.local_bytes for row in self.variables)

    @property
    def has_open_sizes(self) -> bool:
        """True if sizes of outputs or collectives are not known, which are shown as "?"."""
        shapes = [row.shape for rows in self.outputs.values() for row in rows]
        shapes += [shape for calls in self.collectives.values() for call in calls for shape in call.shapes]
        return any(None in shape for shape in shapes)

    def as_json(self) -> dict[str, Any]:
        """All of it, as JSON can carry it."""
        sums = {"bytes": self.num_bytes, "local_bytes": self.local_bytes}
        return json.loads(json.dumps({**dataclasses.asdict(self), **sums}))

    def save(self, path: str | Path) -> None:
        """Writes the text, or JSON if the path ends in .json."""
        path = Path(path)
        text = json.dumps(self.as_json(), indent=1) if path.suffix == ".json" else str(self)
        with beside(path) as temporary:  # all ranks may write to one path
            temporary.write_text(text + "\n")

    def __str__(self) -> str:
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        place = ", ".join(f"{axis} {number}" for axis, number in self.place.items())
        head = f"Model '{self.model}', {self.strategy}" + (f", mesh {mesh}, this rank at {place}" if mesh else "")
        console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
        console.print(head)
        console.print(self._variables_table())
        console.print(
            f"Parameters: {size(self.num_bytes)}, on this rank {size(self.local_bytes)}; optimizer: "
            f"{size(self.optimizer_bytes)}, on this rank {size(self.local_optimizer_bytes)}"
        )
        if self.sums:
            console.print(self.sums)
        for method, calls in self.collectives.items():
            console.print(
                f"Layers in {method}, and what they send:", outputs_table(self.outputs[method], calls), sep="\n"
            )
            console.print(f"Collectives of {method}: {summary(calls) or 'none'}")
            if calls:
                console.print(collectives_table(calls))
        if self.has_open_sizes:
            console.print(OPEN_SIZES)
        return console.file.getvalue().rstrip()  # type: ignore[attr-defined]

    def _variables_table(self) -> Table:
        has_parts = any(row.part_shape is not None for row in self.variables)
        more = ("updates", "state's bytes") if has_parts else ()
        table = Table("variable", "shape", "layout", "on this rank", "bytes", *more, box=None, pad_edge=False)
        for row in self.variables:
            part = [shown(row.part_shape or row.local_shape), str(row.state_bytes)] if has_parts else []
            layout = divisions(row.axes) + row.source
            table.add_row(row.path, shown(row.shape), layout, shown(row.local_shape), str(row.local_bytes), *part)
        return table


def describe(model: keras.Model) -> Description:
    """How `model` is divided over the ranks, and what its steps send.

    Example:
        ```python
        with kp.DataParallel(zero=1, zero_min_kb=0).scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64)])
            model.compile("adam", "mse")
        model.fit(np.ones((100, 8)), np.ones((100, 64)), batch_size=64)
        description = kp.describe(model)
        print(description)  # a table of variables, and one of collectives
        kernel = description.variables[0]
        kernel.shape  # -> (8, 64)
        kernel.part_shape  # -> (4, 64)
        ```

    Sizes of the optimizer are those of its state as it is now, collectives those of the steps that have been traced,
    which `fit` and `evaluate` do.

    Args:
        model: that is built, with or without a strategy.

    Returns:
        A description to be printed, or written by its `save(path)`, as JSON if the path ends in ".json". It has
            `variables`, each with `path`, `shape`, `local_shape`, `part_shape`, `num_bytes` and `local_bytes`; the
            sums `num_bytes`, `local_bytes`, `optimizer_bytes` and `local_optimizer_bytes`; `collectives` and `outputs`
            by the name of the step's method; the axes and sizes of the `mesh`, and this rank's `place` on it.

    Raises:
        ValueError: the model is not built.

    Costs no collective.
    """
    if not model.built:
        raise ValueError(
            f"keras-par: model '{model.name}' is not built, so that it has nothing to describe: give it an Input, or "
            "call it once."
        )
    binding = bound(model)
    mesh = None if binding is None else binding.mesh
    state = state_bytes(model)
    rows = [
        dataclasses.replace(
            row_of(entry.variable, binding and binding.strategy), state_bytes=state.get(id(entry.variable), 0)
        )
        for entry in entries(model, "model")
    ]
    slots = [row_of(entry.variable, None) for entry in entries(model, "optimizer")]
    return Description(
        model=model.name,
        strategy="no strategy" if binding is None else type(binding.strategy).__name__,
        mesh={} if mesh is None else {axis: mesh.size(axis) for axis in mesh.plan.axis_names},
        place={} if mesh is None else dict(sorted(mesh.coordinates.items())),
        variables=rows,
        optimizer_bytes=sum(row.num_bytes for row in slots),
        local_optimizer_bytes=sum(row.local_bytes for row in slots),
        collectives={} if binding is None else binding.collectives,
        outputs={} if binding is None else binding.outputs,
        sums="" if binding is None else route(binding),
    )


def row_of(variable: keras.Variable, strategy: Any) -> VariableRow:
    shape = tuple(variable.shape)
    divided = is_sharded(variable)
    local_shape = variable.local_shape if divided else shape
    size = tf.as_dtype(variable.dtype).size
    return VariableRow(
        path=variable.path,
        shape=shape,
        axes=variable.axes if divided else (None,) * len(shape),
        said_by=said_by(strategy, variable.path),
        local_shape=tuple(local_shape),
        dtype=variable.dtype,
        num_bytes=math.prod(shape) * size,
        local_bytes=math.prod(local_shape) * size,
        part_shape=part_shape(variable) if has_own_part(variable) else None,
        is_gathered_on_use=placement_of(variable).is_gathered_on_use,
    )


def state_bytes(model: keras.Model) -> dict[int, int]:
    """For variables, by their ids, the bytes that a model's optimizers keep for each on this rank."""
    found: defaultdict[int, int] = defaultdict(int)
    for optimizer in optimizers_of(model):
        for variable, slots in slots_by_variable(optimizer).items():
            found[variable] += sum(row_of(slot, None).local_bytes for slot in slots)
    return found


def outputs_table(outputs: list[OutputRow], calls: list[Call]) -> Table:
    """One row for each layer's output, in the order of the calls."""
    table = Table("layer", "kind", "output", "layout", "on this rank", "sent", box=None, pad_edge=False)
    sent = sent_by_layer(calls)
    for row in outputs:
        layout = divisions(row.axes) + (" (inferred)" if row.is_inferred else "")
        table.add_row(row.layer, row.kind, shown(row.shape), layout, shown(row.local_shape), sent.get(row.layer, ""))
    return table


def sent_by_layer(calls: list[Call]) -> dict[str, str]:
    """For each layer's path a summary of its collectives, forward and backward."""
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.layer].append(call)
    return {layer: summary(own) for layer, own in found.items()}


def summary(calls: list[Call]) -> str:
    """How many collectives of each kind there are over how many ranks, and their bytes on this rank."""
    kinds: defaultdict[tuple[str, int], list[int | None]] = defaultdict(list)
    for call in calls:
        kinds[call.kind, call.size].append(call.num_bytes)
    parts = []
    for (kind, num_ranks), sizes in kinds.items():
        total = "?" if None in sizes else f"{sum(filter(None, sizes)):,}"
        parts.append(f"{len(sizes)} {kind} over {num_ranks} ranks ({total} bytes)")
    return ", ".join(parts)


def collectives_table(calls: list[Call]) -> Table:
    """One row for each collective of a step, in the order in which they were traced."""
    has_routes = any(call.route for call in calls)
    columns = ("collective", *(["route"] if has_routes else []), "ranks", "shapes", "bytes", "layer", "source")
    table = Table(*columns, box=None, pad_edge=False)
    for call in calls:
        shapes = " ".join(map(shown, call.shapes[:3])) + (" ..." if len(call.shapes) > 3 else "")
        size = "?" if call.num_bytes is None else str(call.num_bytes)
        route_of = [(call.route or "").replace("_", " ")] if has_routes else []
        table.add_row(call.kind, *route_of, ranks_shown(call.ranks), shapes, size, call.layer, call.source)
    return table


def divisions(axes: tuple[str | None, ...]) -> str:
    """A layout as text, "whole" where nothing is divided."""
    return "(" + ", ".join(axis or "-" for axis in axes) + ")" if any(axes) else "whole"


def shown(numbers: tuple) -> str:
    return "(" + ", ".join("?" if number is None else str(number) for number in numbers) + ")"


def ranks_shown(ranks: tuple[int, ...]) -> str:
    """The ranks of a group; many that are equally far apart as Python's slices have them, as 0:512:8."""
    steps = {after - before for before, after in itertools.pairwise(ranks)}
    if len(ranks) < MANY or len(steps) != 1:
        return shown(ranks)
    [step] = steps
    return f"{ranks[0]}:{ranks[-1] + step}" + (f":{step}" if step > 1 else "")
