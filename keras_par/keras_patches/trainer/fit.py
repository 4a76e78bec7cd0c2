"""Runs `fit`, `evaluate`, `predict` and the `*_on_batch` methods of a bound model on all ranks together."""

import contextlib
import inspect
from typing import Literal

import keras
from keras import tree

from keras_par.base.user_code import without_own_frames
from keras_par.comm import world
from keras_par.job import failures, rank_heartbeat
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.coordination.one_thread import one_thread
from keras_par.keras_patches.inputs.components import complaint_in
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.models import foreign_callbacks
from keras_par.keras_patches.models.compile_options import plain_settings
from keras_par.keras_patches.step.metrics import value_now
from keras_par.keras_patches.step.non_gradient_state import average_state
from keras_par.keras_patches.trainer import epoch_iterator as epochs
from keras_par.keras_patches.trainer.callback_state import late_ones_last, tell
from keras_par.keras_patches.trainer.custom_step import require_stock_makers
from keras_par.keras_patches.trainer.fit_heartbeat import FitHeartbeat
from keras_par.sharding import step as steps

STEPS: dict[str, tuple[Literal["train", "test"], ...]] = {"fit": ("train", "test"), "evaluate": ("test",)}


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
        given = with_our_own(self, call.arguments, kind, binding is not None)
        is_common = binding is not None or bindings.is_single_rank()
        what = f"{kind} of '{self.name}'"
        only = contextlib.nullcontext() if binding is None else told(lambda: one_thread.during(what))
        with only, rank_heartbeat.current().call(kind, is_common), epochs.released_after(), given as callbacks:
            if binding is None:
                with alone(self):
                    return original(*call.args, **call.kwargs)
            with start(self, binding, kind, call.arguments, callbacks):
                return told(lambda: original(*call.args, **call.kwargs))

    return replacement


def alone(model: keras.Model) -> contextlib.AbstractContextManager:
    """Around a call that only this rank makes: a model that is bound has functions for it besides the shared ones."""
    binding = bindings.bound(model) if bindings.is_distributed() else None
    return contextlib.nullcontext() if binding is None else binding.own_functions(model)


def start(model: keras.Model, binding: bindings.Binding, kind: runs.Kind, arguments: dict, callbacks: list) -> runs.Run:
    """A run for these arguments of a trainer method, which it adjusts: quiet ranks, and callbacks that agree."""
    foreign_callbacks.refuse(kind)
    require_stock_makers(model)
    if binding.communicator.rank != 0:  # one process prints once
        arguments["verbose"] = 0
    outer = runs.current(model)
    if outer is not None and kind != "fit":
        reads = outer.logs_each_step  # as the ranks agreed on for the whole fit
    else:
        reads = any(runs.reads_each_step(callbacks, mode) for mode in STEPS.get(kind, ()))
    shared = ("epochs", "initial_epoch", "steps_per_epoch", "steps", "validation_steps", "validation_freq")
    settings = {name: arguments[name] for name in shared if name in arguments}
    settings["steps_per_execution"] = model.steps_per_execution
    settings["callbacks that act on all ranks"] = list(filter(None, map(acts_on_all_ranks, callbacks)))
    if kind == "fit":
        settings["shuffle"] = arguments["shuffle"]
        settings["class_weight"] = plain_settings(arguments["class_weight"])
        settings["validation"] = arguments["validation_data"] is not None or bool(arguments["validation_split"])
    run = runs.Run(model, binding, kind, settings, reads, callbacks)
    if outer is not None:
        run.heard = outer.heard  # a validation's input may be open already
    return run


def acts_on_all_ranks(callback: keras.callbacks.Callback) -> str | None:
    """What a callback that must be on every rank is called, None for others."""
    named = getattr(callback, "acts_on_all_ranks", None)
    return named or ("BackupAndRestore" if isinstance(callback, keras.callbacks.BackupAndRestore) else None)


@contextlib.contextmanager
def with_our_own(model: keras.Model, arguments: dict, kind: runs.Kind, is_distributed: bool):
    """The list of callbacks that Keras's method is given: the user's, and in `fit` those behind that stop all ranks.

    Before `fit` begins the user's are told of each other, and told when it is left, also by an error.
    """
    given = arguments["callbacks"]
    is_container = isinstance(given, keras.callbacks.CallbackList)
    before = given.callbacks if is_container else tree.flatten(given or [])
    callbacks = [callback for callback in before if callback is not None]
    if kind == "fit":
        tell(callbacks, "meet", list(callbacks))
        callbacks = late_ones_last(callbacks)
        begun = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: tell(callbacks, "on_all_begun"))
        ours = [*([runs.StopTogether()] if is_distributed else []), begun]
        ours += [FitHeartbeat(callbacks)] if rank_heartbeat.current().is_watched else []
        for callback in ours if is_container else ():
            callback.set_model(model)
            callback.set_params(given.params)
        callbacks += ours
    if is_container:
        given.callbacks = callbacks
    else:
        arguments["callbacks"] = callbacks
    try:
        yield callbacks
    finally:
        if kind == "fit":
            tell(callbacks, "on_fit_exit")
        if is_container:
            given.callbacks = before


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
        only = told(lambda: one_thread.during(f"{original.__name__} of '{self.name}'"))
        with only, rank_heartbeat.current().call(kind), runs.Run(self, binding, kind, {}, logs_each_step=True) as run:
            told(lambda: run.open_batch(batch))
            return told(lambda: original(*call.args, **call.kwargs))

    return replacement


def told(call):
    """The result of `call`; an error in it reaches the other ranks, unless this rank works alone, and is raised here.

    Its traceback has no frames of this package but the innermost, where Keras leaves out its own frames, too.
    """
    try:
        return call()
    except Exception as caught:
        if keras.config.is_traceback_filtering_enabled():
            caught = caught.with_traceback(without_own_frames(caught.__traceback__))
        if bindings.is_independent():
            raise caught
        error = complaint_in(caught) or caught
        rank_heartbeat.current().enter(rank_heartbeat.SCRIPT)  # the ranks tell each other for some seconds
        shared = failures.explain(error)
        if shared is caught:
            raise caught
        raise shared from (caught if shared is error else error)


def metrics_result(original):
    """Where `fit` and `evaluate` turn metrics into logs, the logs become those of all ranks' rows."""

    def replacement(self, logs):
        run = runs.current(self)
        if run is None:
            return original(self, logs)
        if run.kind == "fit":
            average_state(run.binding.data, self)
        if not run.logs_each_step:  # else they are already
            logs = run.global_logs(logs)
        return tree.map_structure(value_now, original(self, logs))

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
