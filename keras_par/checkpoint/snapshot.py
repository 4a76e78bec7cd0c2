"""Copies a model's state out of its variables, and puts it back, also on another mesh or number of ranks."""

import contextlib
import json
import math

import keras
import numpy as np
import tensorflow as tf

from keras_par.base import generators
from keras_par.checkpoint.files import BLOCK_BYTES
from keras_par.checkpoint.grid import Grid, Part, in_a_row
from keras_par.checkpoint.manifest import CheckpointError, Variable
from keras_par.checkpoint.reader import Reader
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.models.model_state import Entry, Section, entries
from keras_par.plan.fingerprint import describe
from keras_par.plan.mesh import REPLICA
from keras_par.sharding.variable_views import is_sharded, local_view

SECTIONS: tuple[Section, ...] = ("model", "optimizer", "metrics")
RANDOM = "random"
LEAST_FROZEN_BYTES = 2**20  # for which a file of their own is worth it


def grid_of(model: keras.Model, num_ranks: int) -> Grid:
    """Where the ranks of a model stand: on its strategy's mesh, or all with other rows."""
    binding = bindings.of(model)
    if binding is None or binding.mesh is None:
        return in_a_row(num_ranks)
    plan = binding.mesh.plan
    replicas = REPLICA if REPLICA in plan.axis_names else None
    return Grid(plan.shape, plan.axis_names, plan.ranks, binding.strategy.batch_dim_name, replicas)


def variables_of(model: keras.Model) -> list[Variable]:
    """What the manifest says about the model's state."""
    return [described(entry) for section in SECTIONS for entry in entries(model, section)]


def described(entry: Entry) -> Variable:
    shape, dtype = list(entry.variable.shape), entry.variable.dtype
    return Variable(entry.name, shape, dtype, entry.across_ranks, list(entry.axes))


def frozen(model: keras.Model) -> frozenset[str]:
    """The variables that training is not meant to change, as under adapters; none where they are small.

    Moving statistics are among them: which of all these have changed is seen where they are written.
    """
    found = [
        entry for entry in entries(model, "model") if not entry.variable.trainable and entry.across_ranks == "same"
    ]
    num_bytes = sum(math.prod(entry.variable.shape) * tf.as_dtype(entry.variable.dtype).size for entry in found)
    return frozenset(entry.name for entry in found) if num_bytes >= LEAST_FROZEN_BYTES else frozenset()


def take(model: keras.Model, grid: Grid, rank: int) -> dict[str, np.ndarray]:
    """Copies of what this rank writes: values or shards that no other rank writes.

    The states of Python's and NumPy's global generators are among them. No collective is used.
    """
    found = [entry for section in SECTIONS for entry in entries(model, section)]
    own = [entry for entry in found if grid.writes(described(entry), rank)]
    binding = bindings.of(model)
    metrics = contextlib.nullcontext() if binding is None else binding.metric_states.parted(binding.data, model)
    random_state = np.frombuffer(json.dumps(generators.states()).encode(), np.uint8)
    with local_view(), metrics:
        return {entry.name: np.array(entry.variable.value) for entry in own} | {RANDOM: random_state}


def restore(model: keras.Model, section: Section, reader: Reader, place: int, num_places: int) -> None:
    """Gives one section of the model's state its values from the files, of which some megabytes come into memory.

    Of a variable that is divided only this rank's shard is read. No collective is used.

    Args:
        model: built, and for the section "optimizer" with built optimizers.
        section: of its state.
        reader: of the checkpoint.
        place: of this rank among those with other rows.
        num_places: how many of these there are.

    Raises:
        CheckpointError: names, shapes or dtypes do not fit the model's, or a file cannot be read.
    """
    own = entries(model, section)
    written = {each.name: each for each in reader.manifest.variables if each.name.startswith(f"{section}/")}
    require_fit(section, own, list(written.values()))
    for entry in own:
        assign(entry, written[entry.name], reader, place, num_places)


def require_fit(section: Section, own: list[Entry], wanted: list[Variable]) -> None:
    ours = {entry.name: [entry.name, list(entry.variable.shape), entry.variable.dtype] for entry in own}
    theirs = {variable.name: [variable.name, variable.shape, variable.dtype] for variable in wanted}
    for name in [*theirs, *ours]:
        if ours.get(name) != theirs.get(name):
            raise CheckpointError(
                f"keras-par: the checkpoint does not fit the {section}: it has {describe(theirs.get(name))}, where "
                f"here is {describe(ours.get(name))}: build and compile the model as it was "
                "when the checkpoint was written."
            )


def assign(entry: Entry, written: Variable, reader: Reader, place: int, num_places: int) -> None:
    """Gives this rank's variable or shard its value, some megabytes at a time."""
    part = part_of(entry.variable)
    dtype = np.dtype(tf.as_dtype(entry.variable.dtype).as_numpy_dtype)
    blocks = rows_of(part, dtype.itemsize)

    def value(block: Part) -> np.ndarray:
        return value_of(entry, written, reader, place, num_places, block, dtype)

    with local_view():
        if len(blocks) == 1:
            entry.variable.assign(value(part))
            return
        target = entry.variable.value
        for block in blocks:
            target[block[0].start - part[0].start : block[0].stop - part[0].start].assign(value(block))


def rows_of(part: Part, itemsize: int) -> list[Part]:
    """A part of a variable cut into blocks of rows of some megabytes each."""
    if not part:
        return [part]
    row_bytes = itemsize * math.prod(each.stop - each.start for each in part[1:])
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    first, last = part[0].start, part[0].stop
    return [(slice(begin, min(begin + step, last)), *part[1:]) for begin in range(first, last, step)] or [part]


def value_of(
    entry: Entry, written: Variable, reader: Reader, place: int, num_places: int, part: Part, dtype: np.dtype
) -> np.ndarray:
    """What a part becomes; with as many places of the data as before, what it was at this rank's."""
    then = reader.manifest.mesh.num_places
    if written.across_ranks == entry.across_ranks != "same" and then == num_places:
        return reader.part_of(written, place, part, dtype)
    if entry.across_ranks == "sum" and place > 0:
        return np.zeros([each.stop - each.start for each in part], dtype)
    value = reader.part_of(written, 0, part, dtype)
    if written.across_ranks in ("sum", "mean"):
        total = value.astype(np.float64 if written.across_ranks == "mean" else dtype)
        for other in range(1, then):
            total += reader.part_of(written, other, part, dtype)
        value = (total / then).astype(dtype) if written.across_ranks == "mean" else total
    return value


def part_of(variable: keras.Variable) -> Part:
    """The part of a variable that this rank holds."""
    shape = [int(size) for size in variable.shape]
    if is_sharded(variable):
        return variable.mesh.shard(shape, variable.axes)
    return tuple(slice(0, size) for size in shape)


def restore_random_state(reader: Reader, rank: int) -> None:
    """Gives the global generators of Python and NumPy the states in a rank's file.

    Raises:
        CheckpointError: the file has none.
    """
    document = reader.read(rank, RANDOM).tobytes()
    try:
        generators.restore(json.loads(document))
    except Exception:  # whatever the generators raise where they are given something else
        raise reader.without_random_states(rank) from None
