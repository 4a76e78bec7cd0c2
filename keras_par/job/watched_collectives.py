"""Notes which collectives this rank is in, inside traced steps too, where Python cannot look."""

import threading
import time

import tensorflow as tf

from keras_par.base.heartbeat_page import GRAPH_PHASES, Page, clipped
from keras_par.comm.branches import seen
from keras_par.comm.communicator import Communicator
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.job import rank_heartbeat
from keras_par.job.rank_heartbeat import STEP, Heartbeat

SAMPLE_SECONDS = 0.1
NUM_COUNTERS = 512
MARK = "keras_par_mark"  # the name of operations that count
BEGUN, DONE = 0, 1  # the counters of steps; two for each name of a collective follow
DATA, FORWARD_BACKWARD, REDUCE = range(len(GRAPH_PHASES))


class Marks:
    """Counters that operations of a graph add to when what they stand behind has been computed.

    Each takes some microseconds at most. Where a GPU works ahead of Python they are too early; untested there.
    """

    def __init__(self):
        self._counters: tf.Variable | None = None  # made late, since it makes TensorFlow take its devices
        self._names: list[str] = []
        self._given_up = [0] * NUM_COUNTERS  # the counters when a step last failed

    def number(self, name: str) -> int:
        """The first of the two counters of a collective; names beyond NUM_COUNTERS share the last ones."""
        if name not in self._names and len(self._names) < NUM_COUNTERS // 2 - 1:
            self._names.append(name)
        return 2 + 2 * (self._names.index(name) if name in self._names else len(self._names) - 1)

    def add(self, counter: int, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """Adds 1 to a counter, in the graph being traced, once the tensors are there.

        Returns the tensors, the first of which waits for that: else a busy thread would come to it much later.
        """
        with tf.control_dependencies([self.count(counter, tensors)]):
            return [tf.identity(tensor) for tensor in tensors[:1]] + tensors[1:]

    def count(self, counter: int, after: list) -> tf.Operation:
        """The operation that adds 1 to a counter, in the graph being traced, after tensors and operations."""
        if self._counters is None:
            with tf.init_scope(), tf.device("cpu"):
                self._counters = tf.Variable(tf.zeros([NUM_COUNTERS], tf.int64), trainable=False)
        with tf.device("cpu"), tf.control_dependencies(after):
            one = tf.constant(1, tf.int64)
            resource = seen(self._counters.handle)
            operation = tf.raw_ops.ResourceScatterAdd(resource=resource, indices=counter, updates=one, name=MARK)
        # TensorFlow would run such operations in the order of the program, each after the collectives before it.
        manager = getattr(operation.graph, "experimental_acd_manager", None)
        if manager is not None:
            manager.run_independently(operation)
        return operation

    def read(self) -> tuple[int, bool, list[str]]:
        """The sum of all counters, whether a step has its batch, and the names of the collectives under way."""
        if self._counters is None:
            return 0, False, []
        counters = self._counters.numpy().tolist()
        since = [now - before for now, before in zip(counters, self._given_up, strict=True)]
        begun, done = since[2::2], since[3::2]
        pending = [name for name, b, d in zip(self._names, begun, done, strict=False) if b > d]
        return sum(counters), since[BEGUN] > since[DONE], pending

    def give_up(self) -> None:
        """Forgets what was under way in a step that has failed, and will never be done."""
        if self._counters is not None:
            self._given_up = self._counters.numpy().tolist()


_marks: Marks | None = None


def start_marks() -> Marks:
    """The marks of this process, which steps that are traced from now on add to."""
    global _marks
    _marks = Marks()
    return _marks


def give_up() -> None:
    """Lets the marks know that the step under way has failed."""
    if _marks is not None:
        _marks.give_up()


def marked(step):
    """`step`, a function of a batch, whose graph marks when the batch is there and when all is done.

    The call in which it is traced is forward-backward to its end: what Python then does, no mark can tell.
    """

    def replacement(data):
        if _marks is None or tf.executing_eagerly():
            return step(data)
        rank_heartbeat.current().is_marked = False
        leaves = tf.nest.flatten(data)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, tf.Tensor)]
        for place, tensor in zip(places, _marks.add(BEGUN, [leaves[place] for place in places]), strict=True):
            leaves[place] = tensor
        graph = tf.compat.v1.get_default_graph()
        num_before = len(graph.get_operations())
        results = step(tf.nest.pack_sequence_as(data, leaves))
        # Results are there long before the weights are updated.
        _marks.count(DONE, [each for each in graph.get_operations()[num_before:] if is_stateful(each)])
        return results

    return replacement


def is_stateful(operation: tf.Operation) -> bool:
    """True for what changes a variable, and whatever else a step must not end without."""
    return operation.op_def is not None and operation.op_def.is_stateful


class WatchedGroup(WrappedCommunicator):
    """Passes every collective to `inner` and notes in the heartbeat when this rank has come to it and left it."""

    def __init__(self, inner: Communicator, beat: Heartbeat, marks: Marks):
        super().__init__(inner)
        self._heartbeat, self._marks = beat, marks
        self._object: str | None = None  # what the object is called that is being gathered

    def _pass(self, kind, name, collective, tensors, op="sum", sent_as=None, root_rank=0):
        if tf.executing_eagerly():
            with self._heartbeat.collective(self._object or name):
                return collective(tensors)
        number = self._marks.number(name)
        tensors = self._marks.add(number, [tf.convert_to_tensor(tensor) for tensor in tensors])
        return self._marks.add(number + 1, collective(tensors))

    def all_gather_object(self, value, name):
        self._object = name
        try:
            return super().all_gather_object(value, name)
        finally:
            self._object = None

    def _wrapped(self, group):
        return WatchedGroup(group, self._heartbeat, self._marks)


class WatchedCommunicator(WatchedGroup):
    """All ranks' communicator under a launcher's watch, which looks into steps, too, until `shutdown`."""

    def __init__(self, inner: Communicator, beat: Heartbeat):
        super().__init__(inner, beat, start_marks())
        self.watch()

    def shutdown(self):
        self._stopped.set()
        self._sampler.join()
        self.inner.shutdown()

    def watch(self) -> None:
        """Starts to look into steps, ten times a second."""
        self._stopped = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="kp-heartbeat", daemon=True)
        self._sampler.start()

    def _sample(self) -> None:
        page = self._heartbeat.page
        while not self._stopped.wait(SAMPLE_SECONDS):
            page.graph_marks, has_batch, pending = self._marks.read()
            if page.phase == STEP:
                has_batch |= not self._heartbeat.is_marked
                page.graph_phase = REDUCE if pending else FORWARD_BACKWARD if has_batch else DATA
                page.samples[page.graph_phase] += 1
                page.graph_collectives = clipped(" ".join(pending), Page.graph_collectives.size)
            page.sampled = time.monotonic()
        page.sampled = 0.0  # nobody looks any more, which says nothing about the interpreter
