"""Lets Keras's operations meet sharded tensors: by a rule where there is one, else with whole tensors."""

import contextlib
import functools
import importlib
import inspect
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import tree
from keras.src.backend.common import global_state

from keras_par.comm import world
from keras_par.keras_patches.table.patch import replace, wrap
from keras_par.keras_patches.table.uses import located
from keras_par.keras_patches.variables.abstract_variable import is_traced
from keras_par.sharding import loop, prefetch_window
from keras_par.sharding import tensor as tensors
from keras_par.sharding.collectives import remembered_in
from keras_par.sharding.recording import Recorder
from keras_par.sharding.rules.table import RULES
from keras_par.sharding.tensor import BINARY, COMPARISONS, ShardedTensor
from keras_par.sharding.variable_views import is_sharded, made_whole, placement_of

BACKEND = "keras.src.backend.tensorflow"
ROOMS = ("core", "linalg", "math", "nn", "numpy", "random", "rnn")
JOINING = ("numpy.concatenate", "numpy.stack")  # which take lists of tensors; elsewhere a list stands for their stack
PLAIN = (tf.Tensor, tf.Variable, keras.Variable, np.ndarray, np.generic, bool, int, float)
# Functions that call others in a loop, where a collective could not be named apart from itself.
LOOPS = ("scan", "while_loop", "fori_loop", "map", "vectorized_map", "associative_scan", "rnn")


@functools.cache
def install() -> None:
    """Wraps functions of Keras's TensorFlow backend, before there is a mesh over which something could be sharded.

    Those without a rule are left as they are: TensorFlow makes whole what they compute with.
    """
    for name in (*BINARY, *COMPARISONS):
        wrap(tf.Tensor, f"__{name}__", left_operand)
    replaced: dict[Any, Callable] = {}
    for room in ROOMS:
        module = importlib.import_module(located(f"{BACKEND}.{room}"))
        for name, function in list(vars(module).items()):
            is_own = isinstance(function, types.FunctionType) and function.__module__ == module.__name__
            if is_own and (f"{room}.{name}" in RULES or name in LOOPS):
                replaced[function] = wrapped(function, f"{room}.{name}")
                replace(module, name, replaced[function])
    for package in packages():
        for name, function in list(vars(package).items()):
            if isinstance(function, types.FunctionType) and function in replaced:
                replace(package, name, replaced[function])


def packages() -> list[types.ModuleType]:
    """Those that have functions of the backend's modules."""
    names = ("keras.src.backend", BACKEND, located(f"{BACKEND}.core").rpartition(".")[0])
    return [importlib.import_module(name) for name in dict.fromkeys(names)]


def wrapped(original: Callable, name: str) -> Callable:
    """`original`, known in RULES by `name`, for arguments of which some may be sharded."""
    parameters = list(inspect.signature(original).parameters)
    is_loop = name.rsplit(".", 1)[-1] in LOOPS

    @functools.wraps(original)
    def replacement(*args, **kwargs):
        if is_loop:
            if name == "core.while_loop" and may_talk(tf.nest.flatten([args[2:3], kwargs.get("loop_vars")])):
                return loop.while_loop(original, world.current(), *args, **kwargs)
            with whole_layer():
                return original(*tree.map_structure(whole, args), **tree.map_structure(whole, kwargs))
        if not any(map(holds_shards, (*args, *kwargs.values()))):
            return (
                original(*map(gated, args), **kwargs)
                if any(map(is_scattered_at_once, args))
                else original(*args, **kwargs)
            )
        args = [resolved(value) for value in args]
        kwargs = {key: resolved(value) for key, value in kwargs.items()}
        values, rule = (*args, *kwargs.values()), RULES.get(name)
        if rule is None or not any(map(holds_shards, values)) or any(map(is_irregular, values)):
            return original(*map(whole, args), **{key: whole(value) for key, value in kwargs.items()})
        if name not in JOINING:
            args, kwargs = list(map(stacked, args)), {key: stacked(value) for key, value in kwargs.items()}
        if not args and parameters[0] in kwargs:  # rules name the first argument by place
            args.append(kwargs.pop(parameters[0]))
        recorder = recorder_of(values)
        if recorder is not None:
            return recorder.call(name, functools.partial(rule, original), tuple(args), kwargs)
        with remembered_in(memory_of_call()):
            return rule(original, *args, **kwargs)

    return replacement


def may_talk(loop_vars: list) -> bool:
    """True for a loop of tensors in a graph of this rank's job, outside of layers, which gather theirs before."""
    are_tensors = all(isinstance(each, (*PLAIN, type(None))) or holds_shards(each) for each in loop_vars)
    return are_tensors and world.is_started() and not layers_under_way() and not tf.executing_eagerly()


def left_operand(original: Callable) -> Callable:
    """An operator of TensorFlow's tensors that leaves a sharded right operand to that one's own operator."""

    def replacement(self, other):
        return NotImplemented if isinstance(other, ShardedTensor) else original(self, other)

    return replacement


def holds_shards(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(holds_shards, value))
    return isinstance(value, ShardedTensor) or stands_for_shards(value)


def is_scattered_at_once(value: Any) -> bool:
    return placement_of(value).is_scattered_at_once


def gated(value: Any) -> Any:
    """A tensor that goes into an operation with such a variable, and whose gradient waits for those of others."""
    is_tensor = isinstance(value, tf.Tensor) and not tf.executing_eagerly()
    return prefetch_window.gate(value) if is_tensor and value.dtype.is_floating else value


def recorder_of(values: Any) -> Recorder | None:
    """Of the first tensor of a trace among these values."""
    for value in values:
        found = recorder_of(value) if isinstance(value, (list, tuple)) else getattr(value, "recorder", None)
        if isinstance(found, Recorder):
            return found
    return None


def stands_for_shards(value: Any) -> bool:
    return is_sharded(value) or is_traced(value)


def resolved(value: Any) -> Any:
    """The sharded tensor that a sharded variable stands for, other values as they are."""
    if isinstance(value, (list, tuple)) and holds_shards(value):
        return type(value)(map(resolved, value))
    return value.value if stands_for_shards(value) else value


def stacked(value: Any) -> Any:
    """One tensor in place of a list that holds sharded ones, other values as they are."""
    is_list = isinstance(value, (list, tuple)) and holds_shards(value)
    return keras.ops.stack(list(map(stacked, value))) if is_list else value


def whole(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and holds_shards(value):
        return type(value)(map(whole, value))
    return tensors.whole(resolved(value))


def is_irregular(value: Any) -> bool:
    return isinstance(value, (tf.SparseTensor, tf.RaggedTensor))


@contextlib.contextmanager
def whole_layer():
    """Within it the variables of the layer under way are whole."""
    layers = layers_under_way()
    with made_whole(filter(stands_for_shards, layers[-1].variables) if layers else []):
        yield


def layers_under_way() -> list[keras.layers.Layer]:
    """Those that are called just now, the innermost last."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return [scope.caller for scope in stack if isinstance(scope.caller, keras.layers.Layer)]


def memory_of_call() -> dict | None:
    """A dictionary that lives as long as the outermost call of a layer under way."""
    stack = global_state.get_global_attribute("name_scope_stack") or []
    return vars(stack[0]).setdefault("_keras_par_memory", {}) if stack else None
