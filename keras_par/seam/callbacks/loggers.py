"""Lets callbacks of other packages, such as loggers, do something on one rank only."""

import functools
import logging
from typing import Any

import keras

from keras_par.comm.communicator import Communicator
from keras_par.seam.callbacks.stock_callbacks import is_written_elsewhere
from keras_par.seam.files import model_files
from keras_par.seam.models.packages import alone, full_name, is_foreign
from keras_par.seam.table.patch import wrap
from keras_par.seam.together import run as runs

logger = logging.getLogger("keras_par")


def run_once(callbacks: list[keras.callbacks.Callback], communicator: Communicator) -> None:
    """Lets each callback of another package do something on the lowest rank that has it only; rank 0 logs which."""
    for callback in callbacks if communicator.size > 1 else ():
        if not is_foreign(callback):
            continue
        for name in dir(callback):
            if (name.startswith("on_") or name == "set_model") and not is_keras_own(callback, name):
                wrap(callback, name, where_it_runs)
        if communicator.rank == 0:
            tell_once(full_name(type(callback)))


@functools.cache
def tell_once(name: str) -> None:
    logger.warning(
        "keras-par: %s runs on one rank only, as callbacks of other packages do; every_rank_writes = True changes that",
        name,
    )


def is_keras_own(callback: keras.callbacks.Callback, name: str) -> bool:
    """True for a method that does nothing, or what every callback does."""
    method = getattr(callback, name)
    return not callable(method) or getattr(type(callback), name, None) is getattr(keras.callbacks.Callback, name, None)


def where_it_runs(original):
    """Leaves a bound method out on ranks where it is not to run, and notes for whom it works where it does."""
    callback: Any = original.__self__

    def replacement(*args, **kwargs):
        if not is_foreign(callback) or saves_divided(callback):
            return original(*args, **kwargs)
        if is_written_elsewhere(callback):
            return None
        with alone(callback):
            return original(*args, **kwargs)

    return replacement


def saves_divided(callback: keras.callbacks.Callback) -> bool:
    """True for a kind of ModelCheckpoint whose model only all ranks together can save."""
    run = runs.current()
    is_saving = isinstance(callback, keras.callbacks.ModelCheckpoint)
    return is_saving and run is not None and bool(model_files.divided(run.model))
