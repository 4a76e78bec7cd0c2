"""Tells from inside of steps, where Python cannot look, which phase and which collectives this rank is in."""

import functools
import threading
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_par.base.heartbeat_page import GRAPH_PHASES, Page, clipped
from keras_par.comm.branches import seen
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.job import rank_heartbeat
from keras_par.job.rank_heartbeat import STEP

SAMPLE_SECONDS = 0.1
MOST_NAMES = 255
MARK = "keras_par_mark"  # the name of operations that count
BEGUN, DONE = 0, 1  # the counters of steps; two for each name of a collective follow
DATA, FORWARD_BACKWARD, REDUCE = range(len(GRAPH_PHASES))


class StepClock:
    """What operations in the graphs of steps tell the heartbeat, of which there is one in a process, too.

    Where a launcher watches, counters are added to when what they stand behind has been computed, for some
    microseconds each, and a thread looks at them ten times a second. Where training is measured
    (`Heartbeat.is_measured` while the step is traced), a call into Python adds up the time in collectives, for tens of
    microseconds. Where a GPU works ahead of Python both are too early; untested there.
    """

    def __init__(self):
        self._counters: tf.Variable | None = None  # made late, since it makes TensorFlow take its devices
        self._names: dict[str, int] = {}
        self._given_up = np.zeros(2 + 2 * MOST_NAMES, np.int64)  # the counters when a step last failed
        self._stopped = threading.Event()
        self._sampler: threading.Thread | None = None

    def change(self, name: str, by: int, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """`tensors` in the graph being traced, behind which `by` more collectives of this name are under way."""
        heartbeat = rank_heartbeat.current()
        if heartbeat.is_watched:
            tensors = self.marked(tensors, self._counter(name) + (by < 0))
        if heartbeat.is_measured:
            note = functools.partial(heartbeat.add_collectives, by)
            tensors = noted(tensors, lambda: tf.numpy_function(note, [], tf.bool).op)
        return tensors

    def step(self, step):
        """`step`, a function of a batch, whose graph marks when the batch is there and when all is done.

        The call in which it is traced is forward-backward to its end: what Python then does, no mark can tell.
        """

        def replacement(data):
            heartbeat = rank_heartbeat.current()
            if not heartbeat.is_watched or tf.executing_eagerly():
                return step(data)
            heartbeat.is_marked = False
            leaves = tf.nest.flatten(data)
            tensors = iter(self.marked([leaf for leaf in leaves if isinstance(leaf, tf.Tensor)], BEGUN))
            leaves = [next(tensors) if isinstance(leaf, tf.Tensor) else leaf for leaf in leaves]
            graph = tf.compat.v1.get_default_graph()
            num_before = len(graph.get_operations())
            results = step(tf.nest.pack_sequence_as(data, leaves))
            # Results are there long before the weights are updated, which stateful operations do.
            made = graph.get_operations()[num_before:]
            behind([each for each in made if each.op_def and each.op_def.is_stateful], lambda: self._add(DONE))
            return results

        return replacement

    def marked(self, tensors: list[tf.Tensor], counter: int) -> list[tf.Tensor]:
        """`tensors` in the graph being traced, which adds 1 to a counter once they are there."""
        return noted(tensors, lambda: self._add(counter))

    def _counter(self, name: str) -> int:
        """The first of the two counters of a collective; names beyond MOST_NAMES share the last ones."""
        if len(self._names) < MOST_NAMES:
            self._names.setdefault(name, len(self._names))
        return 2 + 2 * self._names.get(name, MOST_NAMES - 1)

    def _add(self, counter: int) -> tf.Operation:
        if self._counters is None:
            with tf.init_scope(), tf.device("cpu"):
                self._counters = tf.Variable(np.zeros_like(self._given_up), trainable=False)
        with tf.device("cpu"):
            one = tf.constant(1, tf.int64)
            resource = seen(self._counters.handle)
            return tf.raw_ops.ResourceScatterAdd(resource=resource, indices=counter, updates=one, name=MARK)

    def read(self) -> tuple[int, bool, list[str]]:
        """The sum of all counters, whether a step has its batch, and the names of the collectives under way."""
        if self._counters is None:
            return 0, False, []
        counters = self._counters.numpy()
        since = (counters - self._given_up).tolist()
        pending = [name for name, b, d in zip(tuple(self._names), since[2::2], since[3::2], strict=False) if b > d]
        return int(counters.sum()), since[BEGUN] > since[DONE], pending

    def give_up(self) -> None:
        """Forgets what was under way in a step that has failed, and will never be done."""
        if self._counters is not None:
            self._given_up = self._counters.numpy()

    def watch(self) -> None:
        """Starts to look into steps, ten times a second; what was under way in those before is forgotten."""
        self.give_up()
        self._stopped.clear()
        self._sampler = threading.Thread(target=self._sample, name="kp-heartbeat", daemon=True)
        self._sampler.start()

    def stop(self) -> None:
        """Looks into steps no more."""
        if self._sampler is not None:
            self._stopped.set()
            self._sampler.join()

    def _sample(self) -> None:
        heartbeat = rank_heartbeat.current()
        page = heartbeat.page
        while not self._stopped.wait(SAMPLE_SECONDS):
            page.graph_marks, has_batch, pending = self.read()
            if page.phase == STEP:
                has_batch |= not heartbeat.is_marked
                page.graph_phase = REDUCE if pending else FORWARD_BACKWARD if has_batch else DATA
                page.samples[page.graph_phase] += 1
                page.graph_collectives = clipped(" ".join(pending), Page.graph_collectives.size)
            page.sampled = time.monotonic()
        page.sampled = 0.0  # nobody looks any more, which says nothing about the interpreter


clock = StepClock()


class TimedCommunicator(WrappedCommunicator):
    """The job's communicator: passes every collective to `inner`, while the clock knows that this rank is in it."""

    def issue(self, request, tensors):
        name = request.name
        if tf.executing_eagerly():
            with rank_heartbeat.current().collective(name):
                return self.inner.issue(request, tensors)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        return clock.change(name, -1, self.inner.issue(request, clock.change(name, 1, tensors)))

    def all_gather_object(self, value, name):
        with rank_heartbeat.current().collective(name):  # which its messages are not called
            return super().all_gather_object(value, name)

    def shutdown(self):
        clock.stop()
        self.inner.shutdown()


def behind(before: list, make: Callable[[], tf.Operation]) -> tf.Operation:
    """What `make` makes in the graph being traced, which runs as soon as all of `before` is done."""
    with tf.control_dependencies(before):
        operation = make()
    # TensorFlow would run such operations in the order of the program, each after the collectives before it.
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)
    return operation


def noted(tensors: list[tf.Tensor], make: Callable[[], tf.Operation]) -> list[tf.Tensor]:
    """`tensors`, the first of which waits for what `make` makes: else a busy thread would come to it much later."""
    with tf.control_dependencies([behind(tensors, make)]):
        return [tf.identity(tensor) for tensor in tensors[:1]] + tensors[1:]
