"""Makes the function that Keras calls for each training or test step: a program, and around it what runs each time."""

import contextlib
import weakref
from typing import Any

import keras
import tensorflow as tf

from keras_par.job.step_clock import clock
from keras_par.keras_patches.coordination import fit_call as runs
from keras_par.keras_patches.inputs.shards import Batches
from keras_par.keras_patches.models import binding as bindings
from keras_par.keras_patches.trainer import abandoned_trace, scalar_probe
from keras_par.keras_patches.trainer.custom_step import without_rows
from keras_par.keras_patches.trainer.fit_heartbeat import with_heartbeat
from keras_par.keras_patches.trainer.step_program import Program, program_of
from keras_par.sharding.step import LossUnknown


def make_function(original):
    """Builds a training or test function whose step knows its rows, around a program."""

    def replacement(self, step_function):
        binding = bindings.of(self)
        if binding is None:
            function = original(self, step_function)
            return with_heartbeat(self, function, is_common=bindings.is_single_rank(), is_marked=False)
        program = program_of(self, binding, step_function)
        function = looked_at(program, lambda: in_graph(program, original))
        function = with_global_logs(program, function)
        return with_heartbeat(self, function, is_common=True, is_marked=not self.run_eagerly)

    return replacement


def in_graph(program: Program, original):
    """A function of an iterator that runs the program for each step, traced unless the model runs eagerly.

    Keras would hand the whole step to XLA, in which no collective can be; a program compiles its own part.
    """
    model, step = program.model, clock.step(program)
    with without_xla(model):
        function = original(model, step)
    return function if model.run_eagerly else direct(model, step, otherwise=function)


def looked_at(program: Program, build):
    """What `build` makes, with a look at the first batch before a model is trained or tested on it.

    A first trace that ends at a loss that it does not know has read no batch; the step is traced anew after a look.
    """
    function = build()

    def replacement(iterator):
        nonlocal function
        iterator = scalar_probe.probe_first_batch(program, iterator)
        if not program.is_first_trace:
            return function(iterator)
        before = abandoned_trace.PythonState(program.model)
        try:
            return function(iterator)
        except LossUnknown as end:
            abandoned_trace.begin_anew(end)
            before.put_back()
            function = build()
        except BaseException:
            program.binding.probed.discard(program.method)  # nobody has looked yet, where a repaired step is run again
            raise
        finally:
            program.is_first_trace = False
        return function(scalar_probe.probe_batch(program, iterator, rows=False, scalars=True))

    return replacement


def with_global_logs(program: Program, function):
    """Metrics hold this rank's rows from here on; they and logs become all ranks' where each step's are read.

    After the first step metrics of the user's own are probed with its batch.
    """

    def replacement(iterator):
        binding = bindings.bound(program.model) or program.binding  # as a callback may have compiled the model anew
        if not binding.metric_states.are_parted:
            binding.metric_states.part(binding.data, program.model)
        run = runs.current()
        logs = without_rows(run, program.binding, program.method, function(iterator))
        if program.binding.metric_probe is not None:
            program.binding.metric_probe.compare()
        return run.global_logs(logs) if run is not None and run.logs_each_step else logs

    return replacement


@contextlib.contextmanager
def without_xla(model: keras.Model):
    """Builds functions that XLA does not compile, whatever the model was compiled with."""
    asked, model._jit_compile = model._jit_compile, False
    try:
        yield
    finally:
        model._jit_compile = asked


def direct(model: keras.Model, step, otherwise):
    """A training or test function of `model` for single steps, as `make_train_function` makes it.

    A call costs some 0.15 ms where Keras's own costs 0.5 ms: the traced function is looked up once for each iterator,
    and its result is not wrapped in an optional value. It is traced when an iterator of another type comes. TensorFlow
    has no public way past the look-up: `_call_flat` and `_iterator_resource` are its own names. Batches that were read
    already are traced by the type of their data, as in one process, and not each by its own number of rows.

    Args:
        model: whose function it is.
        step: a function of a batch.
        otherwise: the function that Keras makes of it, for several steps in one call and for lists of batches.
    """
    step = model._autoconvert_optionals(step)
    traced = tf.function(lambda iterator: step(iterator.get_next()), reduce_retracing=True, autograph=False)
    traced_alone = tf.function(step, reduce_retracing=True, autograph=False)
    known: Any = lambda: None  # noqa: E731 - becomes a weak reference: iterators are let go of after an epoch
    known_type: Any = None
    function: Any = None
    function_alone: Any = None

    def call(iterator):
        nonlocal known, known_type, function, function_alone
        is_eager = tf.config.functions_run_eagerly()
        if isinstance(iterator, Batches) and not is_eager:
            if iterator.type is not known_type:
                function_alone, known_type = traced_alone.get_concrete_function(iterator.type), iterator.type
            for shard in iterator:
                logs = function_alone(shard)
            return logs
        if iterator is not known():
            is_single = model.steps_per_execution == 1 and not is_eager
            if not is_single or not isinstance(iterator, tf.data.Iterator):
                return otherwise(iterator)
            function = traced.get_concrete_function(iterator)
            known = weakref.ref(iterator)
        return function._call_flat([iterator._iterator_resource], function.captured_inputs)

    return call
