"""Copies a model's state out of its variables, and puts it back, also into another number of ranks."""

import json
import random
from collections.abc import Sequence

import keras
import numpy as np

from keras_par.checkpoint.files import Arrays
from keras_par.checkpoint.manifest import CheckpointError, Variable
from keras_par.plan.fingerprint import describe
from keras_par.seam.state import Entry, Section, entries

SECTIONS: tuple[Section, ...] = ("model", "optimizer", "metrics")
RANDOM = "random"


def variables_of(model: keras.Model) -> list[Variable]:
    """What the manifest says about the model's state."""
    return [
        Variable(entry.name, list(entry.variable.shape), entry.variable.dtype, entry.across_ranks)
        for section in SECTIONS
        for entry in entries(model, section)
    ]


def take(model: keras.Model, rank: int) -> dict[str, np.ndarray]:
    """Copies of what this rank writes: on rank 0 all, on others what they do not share with it.

    The states of Python's and NumPy's global generators are among them.
    """
    found = [entry for section in SECTIONS for entry in entries(model, section)]
    arrays = {
        entry.name: np.array(entry.variable.value) for entry in found if rank == 0 or entry.across_ranks != "same"
    }
    return arrays | random_state()


def restore(
    model: keras.Model, section: Section, files: Sequence[Arrays], rank: int, size: int, wanted: list[Variable]
) -> None:
    """Gives one section of the model's state its values from the files of all ranks that wrote them.

    Args:
        model: built, and for the section "optimizer" with built optimizers.
        section: of its state.
        files: the arrays in the files, in the order of the ranks that wrote them.
        rank: this rank among those that restore.
        size: how many restore.
        wanted: the manifest's variables.

    Raises:
        CheckpointError: names, shapes or dtypes do not fit the model's.
    """
    own = entries(model, section)
    require_fit(section, own, [variable for variable in wanted if variable.name.startswith(f"{section}/")])
    for entry in own:
        entry.variable.assign(value_of(entry, files, rank, size))


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


def value_of(entry: Entry, files: Sequence[Arrays], rank: int, size: int) -> np.ndarray:
    """What one rank's variable becomes; with as many ranks as before, what it was."""
    dtype = np.asarray(entry.variable.value).dtype
    if entry.across_ranks == "same":
        return as_dtype(files[0][entry.name], dtype)
    values = [as_dtype(arrays[entry.name], dtype) for arrays in files]
    if len(files) == size:
        return values[rank]
    if entry.across_ranks == "sum":
        return np.sum(values, axis=0, dtype=dtype) if rank == 0 else np.zeros_like(values[0])
    if entry.across_ranks == "mean":
        return np.mean(values, axis=0, dtype=np.float64).astype(dtype)
    if entry.across_ranks == "seed":
        return values[0] + np.array([rank, 0], dtype)
    return values[0]


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array, whose bits are those of `dtype` where the file has no name for it."""
    return array if array.dtype == dtype else array.view(dtype)


def random_state() -> dict[str, np.ndarray]:
    """The states of this process's global generators of Python and NumPy, as the bytes of JSON."""
    name, keys, *rest = np.random.get_state()
    states = {"python": random.getstate(), "numpy": [name, np.asarray(keys).tolist(), *rest]}
    return {RANDOM: np.frombuffer(json.dumps(states).encode(), np.uint8)}


def restore_random_state(arrays: Arrays) -> None:
    """Gives the global generators of Python and NumPy the states in a rank's file."""
    states = json.loads(arrays[RANDOM].tobytes())
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))
