"""One call of `fit`, `evaluate` or `predict` on all ranks together: what they agree on before, during and after."""

import contextvars
import warnings
from typing import Any, Literal

import keras
import tensorflow as tf
from keras.callbacks import BackupAndRestore, History, ModelCheckpoint, ProgbarLogger, TensorBoard

from keras_par.comm.agreement import AgreedValueError, exchange
from keras_par.seam import metrics
from keras_par.seam.binding import Binding
from keras_par.seam.input import Source, global_seed
from keras_par.seam.prepare import prepare

Kind = Literal["fit", "evaluate", "predict", "train_on_batch", "test_on_batch"]


class Run:
    """One call of a trainer method on a bound model, the same call on every rank.

    Args:
        model: the bound model.
        binding: its strategy.
        kind: the method called.
        settings: arguments that must be equal on all ranks, as JSON can carry them.
        logs_each_step: True if something on this rank reads the logs of single steps.
    """

    def __init__(
        self, model: keras.Model, binding: Binding, kind: Kind, settings: dict[str, Any], logs_each_step: bool
    ):
        self.model, self.binding, self.kind = model, binding, kind
        self.communicator = binding.communicator
        self.settings = settings
        self.logs_each_step = logs_each_step
        self._started = False

    def __enter__(self) -> "Run":
        self._token = _current.set(self)
        return self

    def __exit__(self, *error) -> None:
        _current.reset(self._token)

    def open(self, source: Source) -> tuple[tf.data.Dataset, bool]:
        """This rank's dataset of an input all ranks were given, and whether its end must be agreed on.

        The first input of a call also prepares the model. Costs two all-gathers of a few bytes, and those of
        `prepare`.

        Raises:
            ValueError: on every rank, if the ranks' arguments or inputs do not fit together.
        """
        answers = exchange(
            self.communicator, "kp.run", self._describe(source), source.complaint(self.communicator.size)
        )
        require_equal(self.kind, answers)
        self.logs_each_step = any(answer["logs_each_step"] for answer in answers)
        seeds = [answer["seed"] for answer in answers]
        shuffle_seed = seeds[0] if len(set(seeds)) > 1 else None
        if shuffle_seed is not None and source.is_shared_dataset and self.communicator.rank == 0:
            warnings.warn(
                f"keras-par: the ranks' TensorFlow seeds differ ({seeds}), so that a tf.data.Dataset that shuffles "
                "gives each rank another order and rows are read twice or never: set the same seed on all ranks.",
                stacklevel=2,
            )
        dataset = source.dataset(self.communicator.size, self.communicator.rank, shuffle_seed)
        if not self._started and (self.kind == "fit" or not self.binding.prepared):
            prepare(self.model, self.binding, dataset.element_spec, only_predict=self.kind == "predict")
        self._started = True
        return dataset, any(answer["may_end_unannounced"] for answer in answers)

    def open_batch(self, batch) -> None:
        """Prepares the model before its first `train_on_batch` or `test_on_batch`, whose `batch` is global."""
        if not self.binding.prepared:
            spec = keras.tree.map_structure(lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf), batch)
            prepare(self.model, self.binding, spec)

    def global_logs(self, logs):
        """The logs of all ranks' rows. Costs one all-reduce for each dtype of the metrics' state."""
        return metrics.global_logs(self.communicator, self.model, logs, metrics.metrics_to_logs)

    def any_rank(self, flag: bool) -> bool:
        """True if `flag` is true on some rank. Costs one all-reduce of a scalar."""
        [most] = self.communicator.all_reduce([tf.constant(int(flag))], "kp.any", "max")
        return bool(most)

    def fewest(self, count: int) -> int:
        """The smallest of the ranks' `count`s. Costs one all-reduce of a scalar."""
        [least] = self.communicator.all_reduce([tf.constant(count)], "kp.fewest", "min")
        return int(least)

    def _describe(self, source: Source) -> dict[str, Any]:
        return {
            "call": self.kind,
            **self.settings,
            "batches": source.num_batches,
            "batch size": source.batch_size,
            "sharded": source.is_sharded,
            "may_end_unannounced": source.may_end_unannounced,
            "logs_each_step": self.logs_each_step,
            "seed": global_seed(),
        }


_current: contextvars.ContextVar[Run | None] = contextvars.ContextVar("keras_par_run", default=None)


def current() -> Run | None:
    """The call of a trainer method that is under way on a bound model, None outside."""
    return _current.get()


NEED_NOT_BE_EQUAL = ("may_end_unannounced", "logs_each_step", "seed")


def require_equal(kind: Kind, answers: list[dict[str, Any]]) -> None:
    """Raises the same ValueError on every rank if the ranks' answers differ in what would make them part ways."""
    for key in answers[0]:
        if key in NEED_NOT_BE_EQUAL:
            continue
        values = [answer.get(key) for answer in answers]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is None:
            continue
        advice = (
            "shard the data with kp.data.shard(..., remainder='wrap'), which gives every rank as many, or set "
            "steps_per_epoch"
            if key == "batches"
            else "call it with the same arguments on every rank"
        )
        raise AgreedValueError(
            f"keras-par: the ranks do not agree about {kind}: '{key}' is {values[0]} on rank 0 but "
            f"{values[other]} on rank {other}: {advice}."
        )


def reads_each_step(callbacks: list, mode: Literal["train", "test"]) -> bool:
    """True if one of `callbacks` looks at single steps, so that the ranks' logs and decisions there must be equal."""
    return any(not is_quiet(callback, mode) for callback in callbacks)


def is_quiet(callback: keras.callbacks.Callback, mode: Literal["train", "test"]) -> bool:
    """True if the callback leaves single steps alone, or only shows or stores what it is given."""
    if isinstance(callback, (History, ProgbarLogger)) or getattr(callback, "reads_own_logs", False):
        return True
    if isinstance(callback, (ModelCheckpoint, BackupAndRestore)) and callback.save_freq == "epoch":
        return True
    if isinstance(callback, TensorBoard) and callback.update_freq == "epoch":
        return True
    hooks = (f"on_{mode}_batch_begin", f"on_{mode}_batch_end", "on_batch_begin", "on_batch_end")
    return all(getattr(getattr(callback, hook), "_is_default", False) for hook in hooks)


class StopTogether(keras.callbacks.Callback):
    """Stops all ranks as soon as a callback on one of them asks for it, so that none goes on alone."""

    reads_own_logs = True

    def on_train_batch_end(self, batch, logs=None):
        run = current()
        if run is not None and run.logs_each_step:
            self.model.stop_training = run.any_rank(self.model.stop_training)

    def on_epoch_end(self, epoch, logs=None):
        run = current()
        if run is not None:
            self.model.stop_training = run.any_rank(self.model.stop_training)
