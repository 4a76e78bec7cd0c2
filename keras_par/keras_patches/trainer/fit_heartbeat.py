"""Lets the heartbeat know what `fit` and its kin are doing, and ends training on all ranks where the launcher asks."""

import keras

from keras_par.base.heartbeat_page import FOR_ANOTHER_WORLD
from keras_par.job import rank_heartbeat
from keras_par.job.step_clock import clock
from keras_par.keras_patches.trainer import epoch_iterator as epochs
from keras_par.keras_patches.trainer.callback_state import tell


def with_heartbeat(model: keras.Model, function, is_common: bool, is_marked: bool):
    """A training, test or predict function of `model` whose calls the heartbeat notes where a launcher watches.

    Args:
        model: whose function it is.
        function: called by Keras.
        is_common: True if all ranks make each call together.
        is_marked: True if it was built around a step that is a step of the clock's, and is traced.
    """
    heartbeat = rank_heartbeat.current()
    if not heartbeat.is_watched:
        return function

    def replacement(data):
        heartbeat.is_marked = is_marked
        heartbeat.begin_step(model.steps_per_execution, is_common)
        try:
            logs = function(data)
        except Exception:
            clock.give_up()
            raise
        heartbeat.end_step(logs)
        return logs

    return replacement


class FitHeartbeat(keras.callbacks.Callback):
    """Notes epochs and their logs; comes after all other callbacks of `fit`.

    When the launcher has been asked to end the job, it knows a step that no rank has begun. After the step before
    that, on every rank, each callback that has a method `on_interrupt(epoch_is_complete)` is called, which may use
    collectives, and a KeyboardInterrupt is raised, whose text says where.

    Args:
        callbacks: the others.
    """

    reads_own_logs = True

    def __init__(self, callbacks: list):
        super().__init__()
        self._callbacks = callbacks
        self._heartbeat = rank_heartbeat.current()

    def on_train_begin(self, logs=None):
        self._iterator = epochs.newest()

    def on_epoch_begin(self, epoch, logs=None):
        self._heartbeat.begin_epoch(epoch, 0 if self._iterator is None else self._iterator.first_step)

    def on_train_batch_end(self, batch, logs=None):
        if self._heartbeat.must_stop and batch + 1 < (self.params.get("steps") or float("inf")):
            self._stop(epoch_is_complete=False)

    def on_epoch_end(self, epoch, logs=None):
        self._heartbeat.tell("epoch", epoch=epoch, steps=self._heartbeat.page.steps, logs=logs or {})
        if self._heartbeat.must_stop:
            self._stop(epoch_is_complete=True)

    def _stop(self, epoch_is_complete: bool) -> None:
        where = f"after step {self._heartbeat.page.step} of epoch {self._heartbeat.page.epoch + 1}"
        self._heartbeat.tell("stopped", text=where)
        tell(self._callbacks, "on_interrupt", epoch_is_complete)
        if self._heartbeat.page.pause == FOR_ANOTHER_WORLD:
            raise KeyboardInterrupt(f"keras-par: stopped {where}, to go on with other ranks")
        raise KeyboardInterrupt(f"keras-par: stopped by its user {where}")
