"""Brings a job that has called `fit` to where a checkpoint was written, on every rank."""

import warnings
from pathlib import Path

import keras

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint import snapshot
from keras_par.checkpoint.load import build_optimizers
from keras_par.checkpoint.manifest import CheckpointError
from keras_par.checkpoint.reader import Reader
from keras_par.checkpoint.rescue import rescue
from keras_par.comm.communicator import Communicator, gather_or_raise
from keras_par.keras_patches.coordination.prepare import build
from keras_par.keras_patches.inputs.arrays import global_seed
from keras_par.keras_patches.inputs.input import Position
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.models.model_state import Section
from keras_par.keras_patches.trainer import epoch_iterator as epochs


def find(folder: Path, prefix: str, communicator: Communicator) -> Reader | None:
    """The newest whole checkpoint, chosen by rank 0 and checked by every rank; None if there is none.

    Costs four all-gathers of a few bytes, four more where hosts may keep a newer one in memory, and each rank reads
    all files once for their checksums.

    Raises:
        ValueError: on every rank, if no checkpoint can be read, or a rank cannot read the one that rank 0 chose.
    """
    rescue(folder, prefix, communicator)
    found, complaint = None, None
    if communicator.rank == 0:
        try:
            found = folders.newest_whole(folder, prefix)
        except CheckpointError as error:
            complaint = bare(error)
    name = gather_or_raise(communicator, "kp.resume.choose", found.manifest.name if found else None, complaint)[0]
    if name is not None and found is None:
        try:
            found = Reader(folder, manifests.read(manifests.path_of(folder, name)))
        except CheckpointError as error:
            complaint = bare(error)
    gather_or_raise(communicator, "kp.resume.read", None, complaint)
    return found


def restore(model: keras.Model, reader: Reader, communicator: Communicator) -> None:
    """Restores weights, optimizers, random state and the position in the data of the `fit` that is under way.

    Metrics are not among them: Keras resets them at an epoch's begin, see `restore_metrics`. Costs two all-gathers
    of a few bytes.

    Raises:
        ValueError: on every rank, if the checkpoint does not fit the model, or its position the data.
    """
    manifest, grid = reader.manifest, snapshot.grid_of(model, communicator.size)
    iterator = epochs.newest()
    position = None if manifest.position is None else Position(*manifest.position)
    complaint = None
    try:
        if iterator is not None:
            build(model, iterator.element_spec, only_predict=False)
        build_optimizers(model)
        sections: tuple[Section, ...] = ("model", "optimizer")
        for section in sections:
            snapshot.restore(model, section, reader, grid.place(communicator.rank), grid.num_places)
        if manifest.mesh == grid:
            snapshot.restore_random_state(reader, communicator.rank)
        if iterator is not None and position is not None:
            complaint = iterator.complaint(position)
    except CheckpointError as error:
        complaint = bare(error)
    finally:
        reader.close()
    gather_or_raise(communicator, "kp.resume.restore", None, complaint)
    if manifest.seed != global_seed() and communicator.rank == 0:
        warnings.warn(
            f"keras-par: TensorFlow's seed is {global_seed()}, but was {manifest.seed} when checkpoint "
            f"'{manifest.name}' was written, so that shuffled data comes in another order and rows may be "
            "used twice or never: call keras.utils.set_random_seed with the same number before the data is built.",
            stacklevel=2,
        )
    if iterator is not None and position is not None:
        iterator.resume(position, manifest.step)


def restore_metrics(model: keras.Model, reader: Reader, communicator: Communicator) -> None:
    """Restores what the metrics had gathered in the epoch that goes on. Costs two all-gathers of a few bytes.

    Raises:
        ValueError: on every rank, if the checkpoint does not fit the metrics.
    """
    grid, complaint = snapshot.grid_of(model, communicator.size), None
    binding = bindings.of(model)
    if binding is not None:
        binding.metric_states.part(binding.data, model)
    try:
        snapshot.restore(model, "metrics", reader, grid.place(communicator.rank), grid.num_places)
    except CheckpointError as error:
        complaint = bare(error)
    finally:
        reader.close()
    gather_or_raise(communicator, "kp.resume.metrics", None, complaint)


def bare(error: CheckpointError) -> str:
    """The error's sentence without the package's name, which `gather_or_raise` puts before it."""
    return str(error).removeprefix("keras-par: ")
