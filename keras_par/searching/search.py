"""`kp.search`: the strategy that trains a model fastest on the ranks of this job."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras

from keras_par.base.sizes import bytes_of
from keras_par.comm import world
from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.native import NOT_YET
from keras_par.distribution.data_parallel import DataParallel
from keras_par.distribution.load_strategy import model_parallel
from keras_par.distribution.model_parallel import ModelParallel
from keras_par.distribution.runtime import init
from keras_par.keras_patches.trainer.abstract_step import as_if_unbuilt
from keras_par.plan.layout import Axes, matches, nearest
from keras_par.plan.machine import Machine
from keras_par.plan.options import Search, one_of, values_of
from keras_par.plan.strategy_file import Strategy, parse_strategy, strategy_text
from keras_par.plan.trace import Trace
from keras_par.plan.training_setup import Setting
from keras_par.searching.alternatives import alternatives
from keras_par.searching.classes import entries, names
from keras_par.searching.explain import Answer, explanation, strategy_of
from keras_par.searching.find import find
from keras_par.searching.known_machines import machine_of, measured_here
from keras_par.searching.measure import measure
from keras_par.searching.meshes import AXES, DATA, NUM_AXES, named
from keras_par.searching.model_trace import look_at


class Plan:
    """What a search found, as a strategy.

    Attributes:
        plan: the strategy as a file has it.
        reasons: what `explain` says.
    """

    plan: Strategy
    reasons: str

    def explain(self) -> str:
        """The mesh, the layouts, what each layer costs, and why it is not another plan."""
        return self.reasons

    def save(self, path: str | os.PathLike) -> None:
        """Writes the file that `kp.load_strategy` takes; on rank 0 alone."""
        if world.current().rank == 0:
            Path(path).write_text(strategy_text(self.plan), encoding="utf-8")


class PlannedDataParallel(Plan, DataParallel):
    """Data parallel, because that is fastest."""


class PlannedModelParallel(Plan, ModelParallel):
    """The layouts that are fastest."""


def search(
    build: Callable[[], keras.Model],
    batch_size: int,
    *,
    search: Search = "dynamic",
    memory: str | float | None = None,
    mesh: Sequence[int] | None = None,
    machine: str | os.PathLike | Machine | None = None,
    layout: Mapping[str, Sequence[str | None]] | None = None,
    input_shape: Sequence[int] = (),
    axes: int = 2,
) -> PlannedDataParallel | PlannedModelParallel:
    """The strategy that trains a model fastest on the ranks of this job, within the memory of each.

    Example:
        ```python
        def build():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model

        strategy = kp.search(build, batch_size=64, memory="8GB", machine="cpu-cluster")
        print(strategy.explain())
        with strategy.scope():
            model = build()
        model.fit(np.ones((100, 8)), np.ones((100, 1)), batch_size=64)
        "batch 2 x model 1" in strategy.explain()  # -> True
        ```

    Rank 0 traces what `build` makes, without making its weights, and searches; the others take what it found. Where
    this machine was not measured before, all ranks do that first (10 seconds), as `keras-par calibrate` does. Where
    nothing fits whole, it also looks at layers that are computed again, and at the stages of ZeRO (docs/zero.md).
    Calls `kp.init()`.

    Args:
        build: makes the compiled model, with `Input`s.
        batch_size: rows of a global batch.
        search: "dynamic" finds the best; "recursive" looks at fewer meshes; "propagation" is "dynamic" with a
            `layout`; "exact" solves an integer program by scipy, to compare with.
        memory: of a rank, as "8GB" or in bytes; an equal part of the host's unless given.
        mesh: the ranks by rows and by one or two other axes, as `(2, 4)`; any unless given.
        machine: a file by `keras-par calibrate`, a name that ships, such as "gpu-host", or a `Machine`.
        layout: patterns and axes ("batch", "model", "model_2" or None for each dim) of variables that are said already.
        input_shape: sizes of the inputs' dims that the model leaves open besides the rows, in their order.
        axes: how many a mesh may have. With 3, a variable may be divided along two dims, and a search takes longer.

    Returns:
        The strategy, a `kp.DataParallel` or a `kp.ModelParallel` with two methods more. `explain()` gives the mesh,
            the layouts, what each layer costs and why it is not another plan, as text. `save(path)` writes the file
            that `kp.load_strategy` takes. Its attribute `plan` is what that file says.

    Raises:
        ValueError: nothing fits, which is said with a number of ranks and with a memory that would do; an argument has
            no such value; a pattern matches no variable. The same on every rank.

    Costs two all-gathers of the plan, two of some kilobytes if it divides weights, and two of a few bytes where no
    machine is named.
    """
    init()
    asked = Asked(batch_size, search, memory, mesh, machine, layout, axes)
    return strategy_from(*found_for(asked, lambda: look_at(build, input_shape)))


@dataclass(frozen=True)
class Asked:
    """What a search is to find, as `search` has it."""

    batch_size: int
    search: Search = "dynamic"
    memory: str | float | None = None
    mesh: Sequence[int] | None = None
    machine: str | os.PathLike | Machine | None = None
    layout: Mapping[str, Sequence[str | None]] | None = None
    axes: int = 2


def found_for(asked: Asked, look: Callable[[], Trace]) -> tuple[Strategy, str]:
    """The plan that rank 0 finds for what it looks at, and the reasons.

    Costs two all-gathers of the plan, and one of a bit where no machine is named.

    Raises:
        AgreedValueError: there is none, or something asked for has no such value.
    """
    job = world.current()
    if job.size == 1:
        return Strategy("plan"), "There is one rank: nothing can be divided."
    with as_if_unbuilt():
        if asked.machine is None and not job.all_gather_object(measured_here().is_file(), "kp.search.machine")[0]:
            machine = measure()
            if job.rank == 0 and job.no_shared_memory != NOT_YET:  # for searches to come, whose jobs sum as this one
                measured_here().parent.mkdir(parents=True, exist_ok=True)
                measured_here().write_text(machine.text(), encoding="utf-8")
        text, reasons, complaint = "", "", None
        if job.rank == 0:
            try:
                answer = found_by(asked, look, job.size, "plan")
                text, reasons = strategy_text(answer.strategy), explanation(answer)
            except ValueError as error:
                if not str(error).startswith("keras-par: "):  # the model's own, which ends the job with its stack
                    raise
                complaint = str(error)
    text, reasons, complaint = job.all_gather_object([text, reasons, complaint], "kp.search")[0]
    if complaint is not None:
        raise AgreedValueError(complaint)
    return parse_strategy(text, "the plan", "plan"), reasons


def found_by(asked: Asked, look: Callable[[], Trace], num_ranks: int, name: str) -> Answer:
    """What one process finds for so many ranks; the strategy gets a name.

    Raises:
        ValueError: there is none, or something asked for has no such value.
    """
    if asked.search not in values_of(Search):
        raise ValueError(f"keras-par: search={asked.search!r} is unknown, use {one_of(values_of(Search))}.")
    if asked.axes not in NUM_AXES:
        raise ValueError(f"keras-par: axes={asked.axes!r} cannot be searched: give 2 or 3.")
    memory, sizes = bytes_of(asked.memory), asked.mesh
    if sizes is not None and len(sizes) not in NUM_AXES:
        raise ValueError(
            f"keras-par: mesh={tuple(sizes)!r} has not two or three sizes: give ranks by rows and by the other axes."
        )
    mesh = None if sizes is None else named(sizes)
    machine = asked.machine if isinstance(asked.machine, Machine) else machine_of(asked.machine)
    trace = look()
    fixed = said_layouts(trace, asked.layout or {})
    found = find(trace, machine, num_ranks, asked.batch_size, asked.search, memory, mesh, fixed, asked.axes)
    patterns = entries(found.best.layouts, [parameter.path for parameter in trace.parameters])
    again = names(found.best.recomputed, {operation.block for operation in trace.operations})
    setting = Setting(machine, found.best.mesh, DATA, asked.batch_size, found.best.zero)
    return Answer(found, strategy_of(found, patterns, again, name), alternatives(trace, setting, fixed, found))


def strategy_from(plan: Strategy, reasons: str) -> PlannedDataParallel | PlannedModelParallel:
    """The plan as an object."""
    made: PlannedDataParallel | PlannedModelParallel
    if plan.entries:
        mesh = keras.distribution.DeviceMesh(tuple(plan.mesh.values()), list(plan.mesh))
        found = model_parallel(plan, mesh, PlannedModelParallel)
        assert isinstance(found, PlannedModelParallel)
        made = found
    else:
        made = PlannedDataParallel(**plan.options)
    made.plan, made.reasons = plan, reasons
    return made


def said_layouts(trace: Trace, layout: Mapping[str, Sequence[str | None]]) -> dict[str, Axes]:
    """The layouts of variables that patterns are for.

    Raises:
        ValueError: a pattern matches no variable, or names an axis that meshes here do not have.
    """
    paths = [parameter.path for parameter in trace.parameters]
    for pattern, axes in layout.items():
        if not any(matches(pattern, path) for path in paths):
            alike = ", ".join(f"'{path}'" for path in nearest(pattern, paths))
            raise ValueError(f"keras-par: pattern '{pattern}' matches no variable; nearest are {alike}: correct it.")
        other = next((axis for axis in axes if axis not in (None, *AXES)), None)
        if other is not None:
            raise ValueError(f"keras-par: pattern '{pattern}' has the axis '{other}': use {one_of(AXES)}.")
    return {path: tuple(axes) for pattern, axes in layout.items() for path in paths if matches(pattern, path)}
