"""Runs `fit`, `evaluate`, `predict` and the `*_on_batch` methods of a bound model on all ranks together."""

import contextlib
import inspect
import warnings

import keras
import tensorflow as tf
from keras import tree

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.turns import turns
from keras_par.job import failures, heartbeat
from keras_par.job.watched import marked
from keras_par.seam.call import autotune, probe
from keras_par.seam.call import epoch as epochs
from keras_par.seam.call.beats import Beats, beating
from keras_par.seam.call.direct_call import direct
from keras_par.seam.call.inexact import say_what_is_inexact
from keras_par.seam.call.own_step import require_stock_makers, shapes_explained, with_rows, without_rows
from keras_par.seam.callbacks import loggers, memories
from keras_par.seam.callbacks.stock_callbacks import acts_on_all_ranks
from keras_par.seam.feed.gathering import as_tensor, gather_rows, joined
from keras_par.seam.feed.shards import KINDS, EvenShard, Part, ThinShard, cut, first_leaf, num_rows
from keras_par.seam.models import binding as bindings
from keras_par.seam.models import packages
from keras_par.seam.models.compiled import plain_settings
from keras_par.seam.rows.batch_rows import batch_rows, compiled_rows, predicted_rows
from keras_par.seam.step import metrics
from keras_par.seam.step.kept_state import average_state
from keras_par.seam.table.keras_names import find
from keras_par.seam.table.replacements import TRAINER
from keras_par.seam.together import run as runs
from keras_par.seam.together import writers
from keras_par.sharding import step as steps
from keras_par.sharding.step import Step
from keras_par.sharding.views import sharded


def compile_model(original):
    """Binds the model to the active strategy once it is compiled."""

    def replacement(self, *args, **kwargs):
        original(self, *args, **kwargs)
        bindings.bind(self)

    return replacement


def resolve_jit(original):
    """jit_compile="auto" means no XLA under a strategy, as Keras has it under tf.distribute's."""

    def replacement(self):
        several = world.is_started() and world.current().size > 1
        return False if several and bindings.strategy_of(self) is not None else original(self)

    return replacement


def together(original):
    """Makes a call of `fit`, `evaluate` or `predict` one `Run`."""
    kind: runs.Kind = original.__name__
    signature = inspect.signature(original)

    def replacement(self, *args, **kwargs):
        binding = told(lambda: bindings.for_call(self, kind))
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        if kind == "fit":
            call.arguments["callbacks"] = with_our_own(self, call.arguments["callbacks"], binding is not None)
        is_common = binding is not None or is_alone()
        turn = contextlib.nullcontext() if binding is None else turns.turn(f"{kind} of '{self.name}'")
        with turn, heartbeat.current().call(kind, is_common), epochs.released_after():
            if binding is None:
                with alone(self):
                    return original(*call.args, **call.kwargs)
            with start(self, binding, kind, call.arguments):
                return told(lambda: original(*call.args, **call.kwargs))

    return replacement


def alone(model: keras.Model) -> contextlib.AbstractContextManager:
    """Around a call that only this rank makes: a model that is bound has functions for it besides the shared ones."""
    binding = bindings.bound(model) if bindings.is_distributed() else None
    return contextlib.nullcontext() if binding is None else binding.own_functions(model)


def start(model: keras.Model, binding: bindings.Binding, kind: runs.Kind, arguments: dict) -> runs.Run:
    """A run for these arguments of a trainer method, which it adjusts: quiet ranks, and callbacks that agree."""
    packages.refuse(kind)
    require_stock_makers(model)
    if binding.communicator.rank != 0:  # one process prints once
        arguments["verbose"] = 0
    callbacks = listed(arguments["callbacks"])
    loggers.run_once(callbacks, binding.communicator)
    outer = runs.current()
    if kind == "fit":
        reads = runs.reads_each_step(callbacks, "train") or runs.reads_each_step(callbacks, "test")
    elif outer is not None and outer.model is model:
        reads = outer.logs_each_step  # as the ranks agreed on for the whole fit
    else:
        reads = kind == "evaluate" and runs.reads_each_step(callbacks, "test")
    shared = ("epochs", "initial_epoch", "steps_per_epoch", "steps", "validation_steps", "validation_freq")
    settings = {name: arguments[name] for name in shared if name in arguments}
    settings["steps_per_execution"] = model.steps_per_execution
    named = [acts_on_all_ranks(callback) for callback in callbacks]
    settings["callbacks that act on all ranks"] = [name for name in named if name is not None]
    if kind == "fit":
        settings["shuffle"] = arguments["shuffle"]
        settings["class_weight"] = plain_settings(arguments["class_weight"])
        settings["validation"] = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    run = runs.Run(model, binding, kind, settings, reads, writers.places(callbacks))
    if outer is not None and outer.model is model:
        run.heard = outer.heard  # a validation's input may be open already
    return run


def listed(given) -> list:
    """The callbacks in what a trainer method takes as such."""
    found = given.callbacks if isinstance(given, keras.callbacks.CallbackList) else tree.flatten(given or [])
    return [callback for callback in found if callback is not None]


def with_our_own(model: keras.Model, given, is_distributed: bool):
    """The callbacks that `fit` was given, and behind them those that stop all ranks and that note epochs.

    Those that save what others remember come after these.
    """
    callbacks = memories.introduce(listed(given))
    ours: list[keras.callbacks.Callback] = [runs.StopTogether()] if is_distributed else []
    ours += [memories.AllBegun(callbacks)] if any(hasattr(each, "on_all_begun") for each in callbacks) else []
    ours += [Beats(callbacks)] if heartbeat.current().is_watched else []
    if not isinstance(given, keras.callbacks.CallbackList):
        return [*callbacks, *ours]
    given.callbacks[:] = callbacks
    for callback in ours:
        if not any(isinstance(each, type(callback)) for each in callbacks):
            callback.set_model(model)
            callback.set_params(given.params)
            given.callbacks.append(callback)
    return given


def batch_together(original):
    """Makes the `*_on_batch` methods take a global batch, of which each rank works on its rows."""
    kind: runs.Kind = "predict" if original.__name__ == "predict_on_batch" else original.__name__
    signature = inspect.signature(original)

    def replacement(self, *args, **kwargs):
        binding = told(lambda: bindings.for_call(self, original.__name__))
        if binding is None:
            with alone(self):
                return original(self, *args, **kwargs)
        call = signature.bind(self, *args, **kwargs)
        call.apply_defaults()
        batch = tuple(call.arguments[name] for name in ("x", "y", "sample_weight") if name in call.arguments)
        turn = turns.turn(f"{original.__name__} of '{self.name}'")
        with turn, heartbeat.current().call(kind), runs.Run(self, binding, kind, {}, logs_each_step=True) as run:
            told(lambda: run.open_batch(batch))
            return told(lambda: original(*call.args, **call.kwargs))

    return replacement


def told(call):
    """The result of `call`; an error in it reaches the other ranks before it is raised here."""
    try:
        return call()
    except Exception as error:
        shared = failures.explain(error)
        if shared is error:
            raise
        raise shared from error


def metrics_result(original):
    """Where `fit` and `evaluate` turn metrics into logs, the logs become those of all ranks' rows."""

    def replacement(self, logs):
        run = runs.current()
        if run is None or run.model is not self:
            return original(self, logs)
        if run.kind == "fit":
            average_state(run.binding.data, self)
        return run.global_logs(logs)

    return replacement


def stock_step(original):
    """Keras's own step, which knows of itself that it is that; `train_step`s of users' own may call it, too."""

    def replacement(self, data):
        step = steps.current()
        if step is None:
            return original(self, data)
        with step.stock():
            return original(self, data)

    return replacement


def make_function(original):
    """Builds a training or test function whose step knows its rows, around Keras's own step."""

    def replacement(self, step_function):
        binding = bindings.of(self)
        if binding is None:
            function = original(self, step_function)
            if not heartbeat.current().is_watched:
                return function
            return beating(self, function, is_common=is_alone(), is_marked=False)
        compiled = self.jit_compile and can_compile(self, step_function)

        def build():
            # Keras would hand the whole step to XLA, in which no collective can be; the step compiles its own part.
            step = marked(distributed_step(self, binding, step_function, compiled))
            with without_xla(self):
                function = original(self, step)
            return function if self.run_eagerly else direct(self, step, otherwise=function)

        is_tuned = binding.options.autotune is not None and step_function.__name__ == autotune.METHOD
        function = autotune.Autotuner(self, binding, build) if is_tuned else build()

        def with_global_logs(iterator):
            run = runs.current()
            if step_function.__name__ == "train_step" and not compiled:
                iterator = probe.look(self, binding, step_function, not is_stock(step_function), iterator)
            logs = without_rows(run, function(iterator))
            if binding.probe.is_pending:
                binding.probe.compare()
            return run.global_logs(logs) if run is not None and run.logs_each_step else logs

        if not heartbeat.current().is_watched:
            return with_global_logs
        return beating(self, with_global_logs, is_common=True, is_marked=not self.run_eagerly)

    return replacement


@contextlib.contextmanager
def without_xla(model: keras.Model):
    """Builds functions that XLA does not compile, whatever the model was compiled with."""
    asked, model._jit_compile = model._jit_compile, False
    try:
        yield
    finally:
        model._jit_compile = asked


def is_alone() -> bool:
    """True in a job of one rank."""
    return world.is_started() and world.current().size == 1


def can_compile(model: keras.Model, step_function) -> bool:
    """True if XLA may compile this step: no collective in it, and Keras's own, which applies gradients at its end."""
    if sharded(model.variables):
        reason = "its variables are divided, so that its layers need other ranks' shards"
    elif is_stock(step_function):
        return True
    else:
        reason = f"it has a {step_function.__name__} of its own, which may need other ranks' gradients halfway"
    warnings.warn(f"keras-par: jit_compile=True is ignored for '{model.name}', because {reason}.", stacklevel=2)
    return False


def is_stock(step_function) -> bool:
    """True for Keras's own training or test step."""
    stock = find(TRAINER)
    return getattr(step_function, "__func__", step_function) in (stock.train_step, stock.test_step)


def distributed_step(model: keras.Model, binding: bindings.Binding, step_function, compiled: bool):
    """`step_function` for a batch that is a shard, a Part, or a global batch that has not been cut."""
    inner = compiled_step(step_function) if compiled else None

    def step(data):
        with binding.counted(step_function.__name__):
            communicator = binding.data
            if not isinstance(data, KINDS):
                data = cut(data, communicator.size, communicator.rank)
            local, total = rows_of(communicator, data)
            thin = isinstance(data, ThinShard)
            guard = metrics.undone_unless(data.has_rows, model) if thin else contextlib.nullcontext()
            current = Step(binding, local, total, thin)
            current.rows = batch_rows(communicator, data, total, current.name, binding.mesh is None)
            if step_function.__name__ == "train_step":
                say_what_is_inexact(current, model, data.batch, is_own=not is_stock(step_function))
            with binding.scope(), current.current(), guard:
                if inner is not None:
                    return inner(current, data.batch)
                with shapes_explained(model, step_function.__name__, binding.num_shards):
                    logs = step_function(data.batch)
            return logs if is_stock(step_function) else with_rows(current, logs)

    return step


def rows_of(communicator: Communicator, data) -> tuple:
    """The batch's rows here and on all ranks; where only the ranks know these, it costs one all-reduce of a number."""
    if isinstance(data, EvenShard):
        local = first_leaf(data.batch).shape[0]
        return local, local * communicator.size
    local = num_rows(first_leaf(data.batch)) if isinstance(data, Part) else data.local
    if isinstance(data, Part) or data.total is None:
        [total] = communicator.all_reduce([local], "kp.rows")
        return local, total
    return local, data.total


def compiled_step(step_function):
    """The step with everything up to the gradients compiled by XLA, and the optimizer's update after it."""
    optimizers = []

    @tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
    def forward_and_backward(batch, local, total, start, binding, thin):
        step = Step(binding, local, total, thin, compiled=True)
        step.rows = compiled_rows(batch, total, start)
        step.captured = []
        with step.current():
            logs = step_function(batch)
        optimizers[:] = [(optimizer, variables) for optimizer, _, variables in step.captured]
        return logs, [gradients for _, gradients, _ in step.captured]

    def run(step: Step, batch):
        logs, captured = forward_and_backward(batch, step.local, step.total, step.rows.start, step.binding, step.thin)
        for (optimizer, variables), gradients in zip(optimizers, captured, strict=True):
            step.scaled.add(id(optimizer))
            optimizer.apply(gradients, variables)
        return logs

    return run


def make_predict_function(original):
    """Builds a predict function that works on this rank's rows and returns the whole batch's, in order."""

    def replacement(self, force=False):
        fresh = self.predict_function is None or force
        binding = bindings.of(self)
        with without_xla(self) if binding is not None and sharded(self.variables) else contextlib.nullcontext():
            result = original(self, force)
        if binding is not None and fresh:
            whole = whole_predictions(binding, self.predict_function)
            self.predict_function = beating(self, whole, is_common=True, is_marked=False)
        return result

    return replacement


def whole_predictions(binding: bindings.Binding, function):
    """`function`, which predicts a list of batches, for lists of Shards, Parts or whole batches."""
    state = tf.Variable([0, 0, 0], dtype=tf.int64, trainable=False)

    def predict(data):
        communicator = binding.data
        outputs = []
        for batch in data:
            if not isinstance(batch, KINDS):
                batch = cut(tree.map_structure(as_tensor, batch), communicator.size, communicator.rank)
            current = Step(binding, *rows_of(communicator, batch), thin=False)
            current.rows = predicted_rows(communicator, batch, current.total, state, binding.mesh is None)
            with binding.scope(), current.current():
                parts = tree.map_structure(as_tensor, function([batch.batch]))
            count = batch.local if isinstance(batch, ThinShard) else None
            flat = [gather_rows(communicator, leaf, i, count) for i, leaf in enumerate(tree.flatten(parts))]
            outputs.append(tree.pack_sequence_as(parts, flat))
        return tree.map_structure(lambda *batches: joined(list(batches)), *outputs)

    return predict
