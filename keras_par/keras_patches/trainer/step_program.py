"""A training or test step as an object, so that a strategy can supply one: what it does with this rank's rows."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.components import counting_component, num_rows
from keras_par.keras_patches.inputs.shards import KINDS, EvenShard, OwnBatch, ThinShard, cut
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.rows import row_slices
from keras_par.keras_patches.rows.batch_rows import batch_rows, compiled_rows
from keras_par.keras_patches.step import metrics
from keras_par.keras_patches.step.batch_normalization import synchronized_layers
from keras_par.keras_patches.step.number_kinds import keys_of_metrics
from keras_par.keras_patches.table.replacements import TRAINER
from keras_par.keras_patches.table.uses import find
from keras_par.keras_patches.trainer.abandoned_trace import FUNCTION
from keras_par.keras_patches.trainer.custom_step import shapes_explained, with_rows
from keras_par.keras_patches.trainer.exactness_warnings import say_what_is_inexact, say_what_mixes_rows
from keras_par.keras_patches.trainer.step_timing import measured
from keras_par.keras_patches.update.optimizer import losses_weighted
from keras_par.sharding.collective_names import numbered
from keras_par.sharding.step import Step
from keras_par.sharding.variable_views import sharded


class Program:
    """One step of a model on several ranks; subclasses say how it runs.

    Every rank calls it with its part of the same batches, eagerly or while a graph is traced. It reduces each gradient
    once before the optimizer uses it, issues the same collectives in the same order on every rank, and returns what
    the step function returns. A strategy that has an attribute `keras_par_program` supplies its own, made of the
    arguments below; `tests/program_contract.py` says what it must keep.

    Args:
        model: whose step it is.
        binding: the model's.
        step_function: the model's `train_step` or `test_step`.
    """

    is_first_trace = False  # True while nobody has looked at the losses of a step that is traced before it runs

    def __init__(self, model: keras.Model, binding: Binding, step_function):
        self.model, self.binding, self.step_function = model, binding, step_function
        self.method: str = step_function.__name__
        self.is_stock = is_stock(step_function)

    def run(self, step: Step, batch) -> Any:
        """The logs of the step on this rank's rows, within `step`."""
        raise NotImplementedError

    @contextlib.contextmanager
    def within(self, step: Step) -> Iterator[None]:
        """Within it the code of the model's step runs as that of `step`."""
        optimizer = getattr(self.model, "optimizer", None)
        with self.binding.scope(), step.current(), losses_weighted(optimizer):
            yield

    def __call__(self, data) -> Any:
        """The logs of a step on a shard, an OwnBatch, or a global batch that has not been cut.

        Where only the ranks know the numbers of rows, it costs one all-reduce of a number besides the step's own.
        """
        binding, model = self.binding, self.model
        with binding.counted(self.method), measured(model, self.method) as num_trained:
            communicator = binding.data
            if not isinstance(data, KINDS):
                data = cut(data, communicator.size, communicator.rank)
            local, total = rows_of(communicator, data)
            thin = isinstance(data, ThinShard)
            of_all_rows = synchronized_layers(model, binding.options)
            guard = metrics.undone_unless(data.has_rows, model, of_all_rows) if thin else contextlib.nullcontext()
            rows = batch_rows(communicator, data, total, numbered, binding.mesh is None)
            first_trace = int(isinstance(self.step_function, find(FUNCTION))) if self.is_first_trace else None
            keys = None if self.is_stock else keys_of_metrics(model)
            step = Step(
                binding,
                local,
                total,
                thin,
                rows=rows,
                first_trace=first_trace,
                method=self.method,
                keys_of_metrics=keys,
                is_blind=binding.options.custom_loss == "auto"
                and tf.inside_function()
                and bool(sharded(model.variables)),
            )
            if self.method == "train_step":
                say_what_is_inexact(step, model, data.batch, is_own=not self.is_stock)
            if num_trained is not None:
                num_trained.assign_add(tf.cast(total, tf.int64))
            with self.within(step), guard:
                logs = self.run(step, data.batch)
            say_what_mixes_rows(step)
            return logs


class Direct(Program):
    """Runs the step function as it is; a step of the user's own returns its rows with its logs."""

    def run(self, step: Step, batch):
        with shapes_explained(self.model, self.method, self.binding.num_shards):
            logs = self.step_function(batch)
        return logs if self.is_stock else with_rows(step, logs)


class Split(Program):
    """Lets XLA compile everything up to the gradients, and runs the optimizer's update after it, with collectives."""

    def __init__(self, model: keras.Model, binding: Binding, step_function):
        super().__init__(model, binding, step_function)
        self._optimizers: list[tuple] = []  # with variables and what lookups gradients are of, in the updates' order
        self._forward_and_backward = tf.function(
            self._captured, jit_compile=True, reduce_retracing=True, autograph=False
        )

    def run(self, step: Step, batch):
        start = step.rows.start
        logs, captured = self._forward_and_backward(batch, step.local, step.total, start, step.binding, step.thin)
        for (optimizer, variables, lookups), parts in zip(self._optimizers, captured, strict=True):
            row_slices.note(step, parts, lookups)
            with step.stock():
                optimizer.apply([row_slices.joined(each) for each in parts], variables)
        return logs

    def _captured(self, batch, local, total, start, binding, thin):
        """The logs, and for each update the pieces of the gradients that it would be called with."""
        captured: list[tuple] = []
        rows = compiled_rows(batch, total, start)
        with Step(binding, local, total, thin, compiled=True, rows=rows, captured=captured).current() as step:
            logs = self.step_function(batch)
            parts = [[row_slices.pieces(each) for each in gradients] for _, gradients, _ in captured]
            lookups = [[[row_slices.lookup_of(step, part) for part in each] for each in update] for update in parts]
        self._optimizers[:] = [
            (optimizer, variables, each) for (optimizer, _, variables), each in zip(captured, lookups, strict=True)
        ]
        return logs, parts


def program_of(model: keras.Model, binding: Binding, step_function) -> Program:
    """The strategy's own program, else the one that fits the model.

    Warns:
        if the model was compiled with jit_compile=True, and XLA cannot compile its step.
    """
    supplied = getattr(binding.strategy, "keras_par_program", None)
    if supplied is not None:
        return supplied(model, binding, step_function)
    kind = Split if model.jit_compile and can_compile(model, binding, step_function) else Direct
    return kind(model, binding, step_function)


def can_compile(model: keras.Model, binding: Binding, step_function) -> bool:
    """True if XLA may compile this step: no collective in it, and Keras's own, which applies gradients at its end."""
    if sharded(model.variables):
        reason = "its variables are divided, so that its layers need other ranks' shards"
    elif is_stock(step_function):
        learns = step_function.__name__ == "train_step"
        normalizing = [each.name for each in synchronized_layers(model, binding.options) if each.trainable and learns]
        if not normalizing:
            return True
        reason = f"layer '{normalizing[0]}' normalizes by the rows of all ranks, as sync_batch_norm=False would not"
    else:
        reason = f"it has a {step_function.__name__} of its own, which may need other ranks' gradients halfway"
    warnings.warn(f"keras-par: jit_compile=True is ignored for '{model.name}', because {reason}.", stacklevel=2)
    return False


def is_stock(step_function) -> bool:
    """True for Keras's own training or test step."""
    stock = find(TRAINER)
    return getattr(step_function, "__func__", step_function) in (stock.train_step, stock.test_step)


def rows_of(communicator: Communicator, data) -> tuple:
    """The batch's rows here and on all ranks; where only the ranks know these, it costs one all-reduce of a number."""
    part = counting_component(data.batch)
    if isinstance(data, EvenShard):  # of one size, or traced anew for any, once there are several
        local = num_rows(part) if part.shape[0] is None else part.shape[0]
        return local, local * communicator.size
    local = num_rows(part) if isinstance(data, OwnBatch) else data.local
    if isinstance(data, OwnBatch) or data.total is None:
        [total] = communicator.all_reduce([local], "kp.rows")
        return local, total
    return local, data.total
