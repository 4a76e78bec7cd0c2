"""Keras's own callbacks on several ranks: all run the same code and decide alike, but one rank writes.

On the other ranks, what such a callback writes by Keras's functions goes nowhere. Code of users' own, in subclasses
too, is left alone, except where Keras's methods call it.
"""

import contextlib
import functools
import os
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_par.comm.broadcast import broadcast_variables
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.coordination import writing_rank
from keras_par.keras_patches.coordination.prepare import take_state_of_rank_0
from keras_par.keras_patches.files import atomic_save, model_files
from keras_par.keras_patches.models.foreign_callbacks import frames_of_callbacks
from keras_par.keras_patches.models.model_state import is_partial, state_of
from keras_par.sharding.variable_views import is_sharded


def is_written_elsewhere(callback: keras.callbacks.Callback | None) -> bool:
    """True inside a run in which a lower rank writes what this callback writes."""
    run = runs.current()
    return run is not None and writing_rank.is_written_before(callback, run.communicator.rank, run.heard)


def acting() -> keras.callbacks.Callback | None:
    """The callback of which a method of Keras's own has called what asks, None if none has."""
    innermost = next(frames_of_callbacks(), None)
    return innermost and innermost.f_locals.get("self")


def where_written(instead: Callable, original: Callable) -> Callable:
    """Calls `instead` if a callback of Keras's calls whose files another rank writes, or if this is a method of one."""

    def replacement(*args, **kwargs):
        run = runs.current()
        if run is None or run.communicator.rank == 0:  # before which no rank is
            return original(*args, **kwargs)
        callback = args[0] if args and isinstance(args[0], keras.callbacks.Callback) else acting()
        return (instead if is_written_elsewhere(callback) else original)(*args, **kwargs)

    return replacement


nothing = functools.partial(where_written, lambda *args, **kwargs: None)
no_writer = functools.partial(where_written, lambda *args, **kwargs: tf.summary.create_noop_writer())


def profiled_apart(original):
    """Profiles on every rank; one that does not write does it in a folder of its own, which `keras-par trace` finds."""

    def replacement(self, logdir):
        if logdir and is_written_elsewhere(self):
            logdir = os.path.join(logdir, f"rank{runs.current().communicator.rank}")
        original(self, logdir)

    return replacement


def into_nothing(original):
    """Opens the system's empty file instead."""
    return where_written(lambda path, *args, **kwargs: original(os.devnull, *args, **kwargs), original)


def printed_once(original):
    """Prints on one rank for a callback; what is said of a file names the path that it was asked for."""
    return nothing(atomic_save.with_the_name_given(original))


def saves_once(original):
    """As `model_files.saved_together`, and for a stock callback on one rank, with gradients accumulated on all ranks.

    Where a class of Keras's itself saves, which all ranks do alike, that costs one all-reduce of the gradients that
    are accumulated, if there are any; a subclass saves what the writing rank has. Of a model that is divided rank 0
    writes, and all ranks take part; see `model_files.together`.
    """
    original = model_files.saved_together(atomic_save.asked_on_rank_0(original))

    def replacement(model, *args, **kwargs):
        run = runs.current()
        callback = run and acting()
        if run is None or callback is None or model_files.divided(model):
            return original(model, *args, **kwargs)
        alike = (
            type(callback) in writing_rank.STOCK
            and run.model is model
            and writing_rank.is_everywhere(callback, run.heard)
        )
        with model_files.whole_accumulators(model, run.binding.data) if alike else contextlib.nullcontext():
            return None if is_written_elsewhere(callback) else original(model, *args, **kwargs)

    return replacement


def restore_together(original):
    """Restores rank 0's backup on all ranks, of which the others look at no file.

    Costs two all-gathers of a few bytes, and one broadcast for each 16 MiB of state; of a model that is divided, see
    `model_files.together`.
    """

    def replacement(self, logs=None):
        run = runs.current(self.model)
        if run is None:
            original(self, logs)
            return
        model, communicator = run.model, run.communicator
        before, model._initial_epoch = model._initial_epoch, None
        optimizer = model.optimizer
        if model_files.divided(model):
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)
            model_files.together(model, "BackupAndRestore", lambda: original(self, logs))
        elif communicator.rank == 0:
            original(self, logs)
        own = [model._initial_epoch, optimizer is not None and optimizer.built]
        epoch, built = communicator.all_gather_object(own, "kp.restored")[0]
        model._initial_epoch = before if epoch is None else epoch
        if epoch is None:
            return  # there was no backup
        if built and not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables = state_of(model)
        if run.binding.mesh is not None:  # ranks with the same rows have equal gradients
            broadcast_variables([v for v in variables if is_partial(v) and not is_sharded(v)])
        take_state_of_rank_0(run.binding, variables, whole=True)

    return replacement
