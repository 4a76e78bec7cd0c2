"""One call of `fit`, `evaluate` or `predict` on all ranks together: what they agree on before, during and after."""

import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras
import tensorflow as tf
from keras.callbacks import BackupAndRestore, History, ModelCheckpoint, ProgbarLogger, TensorBoard

from keras_par.comm.agreed import AgreedValueError
from keras_par.comm.broadcast import broadcast_variables
from keras_par.comm.communicator import gather_or_raise
from keras_par.keras_patches.coordination.one_thread import told_apart
from keras_par.keras_patches.coordination.prepare import prepare
from keras_par.keras_patches.coordination.writing_rank import places, require_everywhere, run_once, warn_of_other_paths
from keras_par.keras_patches.inputs.arrays import checksum, global_seed
from keras_par.keras_patches.inputs.input import Input
from keras_par.keras_patches.inputs.same_data import difference, other_rows, tell
from keras_par.keras_patches.models.binding import Binding, bound, optimizers_of
from keras_par.keras_patches.models.weight_check import require_same_weights
from keras_par.keras_patches.step import metrics
from keras_par.keras_patches.step.metric_states import assign, kept
from keras_par.plan.fingerprint import first_unequal
from keras_par.plan.options import Remainder
from keras_par.sharding import copies
from keras_par.sharding.variable_views import sharded

End = Literal["same", "agree", "fill up"]
logger = logging.getLogger("keras_par")

Kind = Literal["fit", "evaluate", "predict", "train_on_batch", "test_on_batch"]


class Run:
    """One call of a trainer method on a bound model, the same call on every rank.

    Args:
        model: the bound model.
        binding: its strategy.
        kind: the method called.
        settings: arguments that must be equal on all ranks, as JSON can carry them.
        logs_each_step: True if something on this rank reads the logs of single steps.
        callbacks: this rank's; those that a lower rank runs are taken out once an input is open. `heard` are then the
            `places` of all ranks' callbacks.
    """

    def __init__(
        self,
        model: keras.Model,
        binding: Binding,
        kind: Kind,
        settings: dict[str, Any],
        logs_each_step: bool,
        callbacks: list[keras.callbacks.Callback] | None = None,
    ):
        self.model, self.kind = model, kind
        self._binding = binding
        self.communicator = binding.communicator
        self.settings = settings
        self.logs_each_step = logs_each_step
        self.callbacks = callbacks or []
        self.heard: list[dict[str, str | None]] = []
        # What the number at a place in the newest logs of a step of the user's own counts on this rank.
        self.weight_of: Callable[[tuple[str, ...]], float] | None = None
        self._started = False
        self._complaints: dict[str, str] = {}  # of its inputs, with what to do

    def __enter__(self) -> "Run":
        self._token = _current.set(self)
        return self

    def __exit__(self, *error) -> None:
        _current.reset(self._token)

    @property
    def binding(self) -> Binding:
        """The model's, which is another one once a callback has compiled it anew."""
        return bound(self.model) or self._binding

    @property
    def remainder(self) -> Remainder:
        """What happens to odd rows of the input that is opened next; only training data may be changed by it."""
        return self.binding.options.remainder if self.kind == "fit" and not self._started else "exact"

    def open(self, source: Input) -> "Opened":
        """This rank's dataset of an input all ranks were given, and how its epochs end.

        The first input of a call also prepares the model. Costs two all-gathers of a few bytes, and those of
        `prepare`.

        Raises:
            ValueError: on every rank, if the ranks' arguments or inputs do not fit together.
        """
        about, complaint = self._describe(source), source.complaint(self.binding.num_shards)
        rows = None if source.is_sharded else about["rows"]
        about["model and data of a thread"] = told_apart(self.model.name, lambda: rows)
        answers = gather_or_raise(self.communicator, "kp.run", about, complaint)
        require_equal(self.kind, answers, unequal="batches" if source.is_sharded else None)
        self.logs_each_step = any(answer["logs_each_step"] for answer in answers)
        if not self._started:
            self.heard = [answer["files"] for answer in answers]
            warn_of_other_paths(self.communicator, self.heard)
        self._complain(source, other_rows([answer["rows"] for answer in answers], "there are other arrays"))
        generators = {answer["generators"] for answer in answers}
        if None not in generators and len(generators) > 1:
            source.begin_as_rank_0(self.communicator)
        seeds = [answer["seed"] for answer in answers]
        shuffle_seed = seeds[0] if len(set(seeds)) > 1 else None
        data = self.binding.data
        dataset = source.dataset(data.size, data.rank, shuffle_seed, answers[0]["order"])
        if not self._started and (self.kind == "fit" or not self.binding.prepared):
            prepare(self.model, self.binding, dataset.element_spec, only_predict=self.kind == "predict")
            if sharded(self.model.variables):
                require_everywhere(self.model, self.heard)
        if not self._started:
            run_once(self.callbacks, self.model, self.communicator.rank, self.heard)
        self._started = True
        counts = [answer["batches"] for answer in answers]
        unannounced = any(answer["may_end_unannounced"] for answer in answers)
        uneven = source.is_sharded and (unannounced or len(set(counts)) > 1)
        if self.communicator.rank == 0:
            say_what_is_odd(source, counts if uneven else [], data.size)
        end: End = "fill up" if uneven else "agree" if unannounced else "same"
        largest = None if None in counts else max(counts)
        return Opened(dataset, largest if source.is_sharded else source.num_batches, end)

    def same_so_far(self, source: Input, num_batches: int, is_end: bool) -> None:
        """Says so if the ranks have read different data. Costs two all-gathers of a few bytes."""
        if source.digest is not None:
            read = self.communicator.all_gather_object(source.digest.after(num_batches), "kp.same_data")
            self._complain(source, difference(read, is_end))

    def _complain(self, source: Input, said: str | None) -> None:
        """Tells on rank 0 of an input, once in this call."""
        if said is not None and said not in self._complaints:
            self._complaints[said] = source.advice
            if self.communicator.rank == 0:
                tell(said, source.advice)

    def complain_again(self) -> None:
        """Tells at the end of a call what may be lost between the lines of its epochs. Costs nothing."""
        if self.communicator.rank == 0:
            for said, advice in self._complaints.items():
                tell(said, advice)

    def open_batch(self, batch) -> None:
        """Prepares the model before its first `*_on_batch`, whose `batch` is global.

        In another thread than the main one it costs two all-gathers of a few bytes, to see that all make the same.
        """
        is_global = getattr(self.binding.strategy, "auto_shard_dataset", True)
        if apart := told_apart(self.model.name, lambda: checksum(batch) if is_global else None):
            about = {"call": self.kind, "model and data of a thread": apart}
            require_equal(self.kind, gather_or_raise(self.communicator, "kp.run", about, None))
        if not self.binding.prepared:
            spec = keras.tree.map_structure(lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf), batch)
            prepare(self.model, self.binding, spec, only_predict=self.kind == "predict")

    def global_logs(self, logs, keeps_own: bool = False):
        """The logs of all ranks' rows, which the metrics hold from now on, until the next step.

        Logs that are no results of metrics, as a step of the user's own may return, are combined by `weight_of`.
        Costs one all-reduce for each dtype of the metrics' state, and one for numbers that are no results.

        Args:
            keeps_own: True lets the metrics hold what they held.
        """
        model, communicator, states = self.model, self.binding.data, self.binding.metric_states
        before = states.join(communicator, model)
        copies.share(self.binding.mesh, [variable for variable, _ in before])
        result = metrics.metrics_to_logs(model, logs) if self.weight_of is None else logs
        if result is not logs:
            result = keras.tree.map_structure(metrics.value_now, result)
        else:
            everywhere = metrics.results_by_name(model)
            with kept([variable for variable, _ in before]):
                assign(before)
                own = metrics.results_by_name(model)
            share = self.binding.data.size / self.communicator.size  # of what ranks with the same rows count
            weight_of = self.weight_of or (lambda place: 1 / self.binding.data.size)
            result = metrics.combined(self.communicator, logs, own, everywhere, lambda place: share * weight_of(place))
        if keeps_own and before:
            states.put_back(before)
        return result

    def everywhere(self, logs):
        """The logs of all ranks' rows of those that a callback is given. Costs what `global_logs` does, or nothing."""
        return logs if self.logs_each_step else self.global_logs(logs, keeps_own=True)

    def any_rank(self, flag: bool) -> bool:
        """True if `flag` is true on some rank. Costs one all-reduce of a scalar."""
        return not self.communicator.all_agree(not flag, "kp.any")

    def share_learning_rates(self) -> None:
        """Gives all ranks the learning rates of rank 0. Costs one broadcast of a few bytes."""
        variables = [variable for each in optimizers_of(self.model) for variable in each.variables]
        rates = [variable for variable in variables if variable.name == "learning_rate"]
        broadcast_variables(rates, communicator=self.communicator)

    def fewest(self, count: int) -> int:
        """The smallest of the ranks' `count`s. Costs one all-reduce of a scalar."""
        [least] = self.communicator.all_reduce([tf.constant(count)], "kp.fewest", "min")
        return int(least)

    def most(self, count: int) -> int:
        """The largest of the ranks' `count`s. Costs one all-reduce of a scalar."""
        [largest] = self.communicator.all_reduce([tf.constant(count)], "kp.most", "max")
        return int(largest)

    def _describe(self, source: Input) -> dict[str, Any]:
        return {
            "call": self.kind,
            **self.binding.describe(),
            "kind of input": None if source.is_sharded else source.kind,
            **self.settings,
            "batches": source.num_batches,
            "batch size": source.batch_size,
            "sharded": source.is_sharded,
            "may_end_unannounced": source.may_end_unannounced,
            "logs_each_step": self.logs_each_step,
            "files": {} if self._started else places(self.callbacks),
            "seed": global_seed(),
            "order": source.order if self.communicator.rank == 0 else None,
            "rows": source.checksum(),
            "generators": source.generators,
        }


_current: contextvars.ContextVar[Run | None] = contextvars.ContextVar("keras_par_run", default=None)


def current(model: keras.Model | None = None) -> Run | None:
    """The call of a trainer method that is under way on a bound model, or on this one; None outside."""
    run = _current.get()
    return run if model is None or (run is not None and run.model is model) else None


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Within it no call is under way."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


@dataclasses.dataclass(frozen=True)
class Opened:
    """This rank's dataset, the batches of an epoch on the rank that has most (None: unknown), and how epochs end.

    "same": all ranks have as many batches. "agree": the ranks ask each other whether all have one more, and end with
    the first that has none. "fill up": they end with the last, and ranks without a batch take part with no rows.
    """

    dataset: tf.data.Dataset
    num_batches: int | None
    end: End


NEED_NOT_BE_EQUAL = ("may_end_unannounced", "logs_each_step", "files", "seed", "order", "rows", "generators")


def say_what_is_odd(source: Input, counts: list[int | None], num_ranks: int) -> None:
    """Logs rows that are dropped or read twice, and ranks that have fewer batches than others.

    Args:
        source: this rank's input.
        counts: each rank's batches if they are not equal, else nothing.
        num_ranks: of the job.
    """
    if source.changed_rows:
        logger.warning(
            "keras-par: of a global batch whose rows %d ranks do not divide, rows are %s (remainder=%r)",
            num_ranks,
            source.changed_rows,
            source.remainder,
        )
    if None not in counts and counts:
        logger.warning("keras-par: the ranks have %s batches; a rank without one takes part with no rows", counts)


def require_equal(kind: Kind, answers: list[dict[str, Any]], unequal: str | None = None) -> None:
    """Raises the same ValueError on every rank if the ranks' answers differ in what would make them part ways.

    Args:
        kind: the method called.
        answers: one for each rank.
        unequal: a key whose values may differ.
    """
    found = first_unequal(answers, NEED_NOT_BE_EQUAL if unequal is None else (*NEED_NOT_BE_EQUAL, unequal))
    if found is None:
        return
    key, other = found
    advice = (
        "give all ranks the same data, or shard it with kp.data.shard, so that fit knows that each has its own"
        if key == "batches"
        else "call it with the same arguments on every rank"
    )
    raise AgreedValueError(
        f"keras-par: the ranks do not agree about {kind}: '{key}' is {answers[0].get(key)} on rank 0 but "
        f"{answers[other].get(key)} on rank {other}: {advice}."
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
    """Stops all ranks as soon as a callback on one of them asks for it, so that none goes on alone.

    It comes after the user's callbacks. Epochs begin with rank 0's learning rates, and `fit` returns when all ranks'
    callbacks are done, so that what one of them writes is complete. The weights must be the same on all ranks then; of
    many or large ones each epoch looks at a part. That costs one all-gather of 8 bytes a variable.
    """

    reads_own_logs = True

    def on_epoch_begin(self, epoch, logs=None):
        run = current()
        if run is not None:
            run.share_learning_rates()

    def on_train_end(self, logs=None):
        run = current()
        if run is not None:
            require_same_weights(run.binding, self.model)
            run.complain_again()
            run.communicator.barrier("kp.train_end")

    def on_train_batch_end(self, batch, logs=None):
        run = current()
        if run is not None and run.logs_each_step:
            self.model.stop_training = run.any_rank(self.model.stop_training)

    def on_epoch_end(self, epoch, logs=None):
        run = current()
        if run is not None:
            require_same_weights(run.binding, self.model, epoch)
            self.model.stop_training = run.any_rank(self.model.stop_training)
