"""Which rank writes what a callback that is not the user's own writes: of the ranks that have it, the lowest."""

import functools
import logging
import warnings
from typing import Any

import keras
from keras import callbacks

from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.models.foreign_callbacks import ALONE, full_name, is_foreign
from keras_par.keras_patches.models.model_state import state_of
from keras_par.sharding.variable_views import sharded

logger = logging.getLogger("keras_par")

# Keras's callbacks that write, print or send something, and what says where to.
STOCK: dict[type[keras.callbacks.Callback], str | None] = {
    callbacks.ModelCheckpoint: "filepath",
    callbacks.BackupAndRestore: "backup_dir",
    callbacks.TensorBoard: "log_dir",
    callbacks.CSVLogger: "filename",
    callbacks.RemoteMonitor: "root",
    callbacks.EarlyStopping: None,
    callbacks.ReduceLROnPlateau: None,
    callbacks.LearningRateScheduler: None,
}

PLACE = "_keras_par_place"


def places(given: list[keras.callbacks.Callback]) -> dict[str, str | None]:
    """Names the callbacks of Keras's and of other packages, and notes on each its name; with it, where it writes to.

    The n-th callback of a class has the same name on every rank, so that it counts as the same callback even if its
    path, such as one with the time of day, is another one. A callback with a true attribute `every_rank_writes` is
    left out.
    """
    found: dict[str, str | None] = {}
    for callback in given:
        attributes = [attribute for kind, attribute in STOCK.items() if isinstance(callback, kind)]
        if not attributes and not is_foreign(callback):
            continue
        kind, path = type(callback).__name__, attributes[0] if attributes else None
        name = f"{kind} {sum(other.split()[0] == kind for other in found) + 1}"
        apart = getattr(callback, "every_rank_writes", False)
        setattr(callback, PLACE, None if apart else name)
        if not apart:
            found[name] = None if path is None else str(getattr(callback, path))
    return found


def is_written_before(callback: Any, rank: int, heard: list[dict[str, str | None]]) -> bool:
    """True if a rank below `rank` has this callback; `heard` holds all ranks' `places`."""
    return any(getattr(callback, PLACE, None) in ranks for ranks in heard[:rank])


def is_everywhere(callback: Any, heard: list[dict[str, str | None]]) -> bool:
    """True if every rank has this callback."""
    return all(getattr(callback, PLACE, None) in ranks for ranks in heard)


def run_once(given: list[keras.callbacks.Callback], model: keras.Model, rank: int, heard: list) -> None:
    """Leaves a callback of another package in the list of a call on the lowest rank that has it; rank 0 logs its own.

    A kind of ModelCheckpoint stays on all ranks if only these together can save the model.
    """
    for callback in [each for each in given if is_foreign(each)]:
        is_saving = isinstance(callback, callbacks.ModelCheckpoint)
        is_alone = len(heard) > 1 and not (is_saving and sharded(state_of(model)))
        setattr(callback, ALONE, is_alone)
        if is_alone and is_written_before(callback, rank, heard):
            given[:] = [each for each in given if each is not callback]
        elif is_alone and rank == 0:
            tell_once(full_name(type(callback)))


@functools.cache
def tell_once(name: str) -> None:
    logger.warning(
        "keras-par: %s runs on one rank only, as callbacks of other packages do; every_rank_writes = True changes that",
        name,
    )


def require_everywhere(model: keras.Model, heard: list[dict[str, str | None]]) -> None:
    """Refuses callbacks of some ranks only that would save a model which all ranks have to save together.

    Raises:
        ValueError: on every rank.
    """
    saving = (callbacks.ModelCheckpoint.__name__, callbacks.BackupAndRestore.__name__)
    for name in (name for ranks in heard for name in ranks if name.split()[0] in saving):
        if not all(name in ranks for ranks in heard):
            raise AgreedValueError(
                f"keras-par: {name.split()[0]} is not on all ranks, but model '{model.name}' is divided, so that none "
                "can save it alone: give fit the same callbacks on every rank."
            )


def warn_of_other_paths(communicator: Communicator, heard: list[dict[str, str | None]]) -> None:
    """Warns on rank 0 if ranks would write the same callback's files to other paths, of which one is written."""
    if communicator.rank != 0:
        return
    for rank, ranks in enumerate(heard):
        for name, path in ranks.items():
            first = next(other[name] for other in heard if name in other)
            if path != first:
                warnings.warn(
                    f"keras-par: {name.split()[0]} writes to {first!r} and not, as rank {rank} would have it, to "
                    f"{path!r}: give it the same path on every rank, or set its attribute every_rank_writes = True, "
                    "with which each rank writes its own.",
                    stacklevel=2,
                )
                return
