"""Tells from inside of steps, where Python cannot look, which phase and which collectives this rank is in."""

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_par.base.heartbeat_page import GRAPH_PHASES, Page, clipped
from keras_par.comm.branches import seen
from keras_par.comm.communicator import Communicator, Request
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.job import rank_heartbeat
from keras_par.job.rank_heartbeat import STEP
from keras_par.job.waits import MOST_WAITS, Call, Wait, WaitWatch, call_of, group_of, has_any_rows, wait_in

SAMPLE_SECONDS = 0.1
MOST_CALLS = 1023
MORE = "one of more collectives than are told apart"
MARK = "keras_par_mark"  # the name of operations that count
BEGUN, DONE = 0, 1  # the counters of steps; those of each collective follow, and how many elements it has
FIRST, EACH = 2, 3  # where that begins, and how many numbers there are of each
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
        self._calls: dict[Call, int] = {}
        self._given_up = np.zeros(FIRST + EACH * (MOST_CALLS + 1), np.int64)  # the counters when a step last failed
        self._eager: dict[tuple[str, str], tuple[Request, Sequence[tf.Tensor]]] = {}  # under way outside of graphs
        self._numbers: Counter[tuple[str, str]] = Counter()  # how many have begun there
        self.waits: WaitWatch | None = None  # what tells other ranks, where the engine does not
        self.is_compared = False  # other ranks want to know what this one waits in
        self._stopped = threading.Event()
        self._sampler: threading.Thread | None = None

    def change(self, call: Call, by: int, tensors: list[tf.Tensor], has_any_rows: bool = False) -> list[tf.Tensor]:
        """`tensors` in the graph being traced, behind which `by` more of this collective are under way.

        Args:
            call: the collective.
            by: 1 or -1.
            tensors: that it is given, or its results.
            has_any_rows: True if each rank may give others.
        """
        heartbeat = rank_heartbeat.current()
        if heartbeat.is_watched or self.is_compared:
            counter = self._counter(call)
            if by > 0 and self.is_compared and call.num_elements is None and not has_any_rows:
                tensors = noted(tensors, lambda: self._set(counter + 2, tensors))
            tensors = self.marked(tensors, counter + (by < 0))
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

    def _counter(self, call: Call) -> int:
        """The first of the counters of a collective; those beyond MOST_CALLS share the last ones, and are no one's."""
        if len(self._calls) < MOST_CALLS:
            self._calls.setdefault(call, len(self._calls))
        return FIRST + EACH * self._calls.get(call, MOST_CALLS)

    def _resource(self) -> tf.Tensor:
        if self._counters is None:
            with tf.init_scope(), tf.device("cpu"):
                self._counters = tf.Variable(np.zeros_like(self._given_up), trainable=False)
        return seen(self._counters.handle)

    def _add(self, counter: int) -> tf.Operation:
        with tf.device("cpu"):
            one, resource = tf.constant(1, tf.int64), self._resource()
            return tf.raw_ops.ResourceScatterAdd(resource=resource, indices=counter, updates=one, name=MARK)

    def _set(self, place: int, tensors: Sequence[tf.Tensor]) -> tf.Operation:
        """Notes how many elements tensors have."""
        with tf.device("cpu"):
            number, resource = tf.add_n([tf.size(tensor, tf.int64) for tensor in tensors]), self._resource()
            return tf.raw_ops.ResourceScatterUpdate(resource=resource, indices=place, updates=number, name=MARK)

    def read(self) -> tuple[int, bool, list[str]]:
        """The sum of all counters, whether a step has its batch, and the names of the collectives under way."""
        if self._counters is None:
            return 0, False, []
        counters = self._counters.numpy()
        begun, done = counters[FIRST::EACH], counters[FIRST + 1 :: EACH]
        pending = dict.fromkeys(call.name for call, _ in self._under_way(counters))
        rest = FIRST + EACH * MOST_CALLS
        if counters[rest] - self._given_up[rest] > counters[rest + 1] - self._given_up[rest + 1]:
            pending[MORE] = None
        has_batch = counters[BEGUN] - self._given_up[BEGUN] > counters[DONE] - self._given_up[DONE]
        return int(counters[:FIRST].sum() + begun.sum() + done.sum()), bool(has_batch), list(pending)

    def _under_way(self, counters: np.ndarray) -> list[tuple[Call, int]]:
        """The collectives in graphs that are, and where their counters are."""
        since = (counters - self._given_up).tolist()
        places = range(FIRST, len(since), EACH)
        return [(call, i) for call, i in zip(tuple(self._calls), places, strict=False) if since[i] > since[i + 1]]

    @contextlib.contextmanager
    def eagerly(self, group: str, request: Request, tensors: Sequence[tf.Tensor]) -> Iterator[None]:
        """Notes that this rank is in a collective outside of graphs."""
        key = group, request.name
        self._numbers[key] += 1
        self._eager[key] = request, tensors
        try:
            yield
        finally:
            self._eager.pop(key, None)

    def collectives(self) -> list[Wait]:
        """What this rank is in, the same first ones on all ranks."""
        counters = self._read_counters()
        numbers = self._all_numbers(counters)
        found = []
        for (group, name), (request, tensors) in tuple(self._eager.items()):
            call = call_of(group, request, tensors)
            found.append(wait_in(call, numbers[group, name], call.num_elements))
        for call, place in self._under_way(counters):
            num_elements = call.num_elements or int(counters[place + 2]) or None
            found.append(wait_in(call, numbers[call.group, call.name], num_elements))
        return sorted(found, key=lambda wait: (wait.group, wait.name))[:MOST_WAITS]

    def has_come_to(self, name: str, number: int) -> bool:
        """True if this rank has been in a collective of all ranks so often."""
        return self._all_numbers(self._read_counters())["", name] >= number

    def _read_counters(self) -> np.ndarray:
        return self._given_up if self._counters is None else self._counters.numpy()

    def _all_numbers(self, counters: np.ndarray) -> Counter[tuple[str, str]]:
        """How many collectives of each name have begun."""
        numbers = self._numbers.copy()
        for place, call in enumerate(tuple(self._calls)):
            numbers[call.group, call.name] += int(counters[FIRST + EACH * place])
        return numbers

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
        if self.waits is not None:
            self.waits.stop()
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
    """The job's communicator: passes every collective to `inner`, while the clock knows that this rank is in it.

    Args:
        inner: of all ranks, or of a group.
        size: number of all ranks, None if they are all.
    """

    def __init__(self, inner: Communicator, size: int | None = None):
        super().__init__(inner)
        self._size = inner.size if size is None else size
        self._group = group_of(inner.ranks, self._size)

    def issue(self, request, tensors):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if tf.executing_eagerly():
            with rank_heartbeat.current().collective(request.name), clock.eagerly(self._group, request, tensors):
                return self.inner.issue(request, tensors)
        call = call_of(self._group, request, tensors)
        given = clock.change(call, 1, tensors, has_any_rows(request))
        return clock.change(call, -1, self.inner.issue(request, given))

    def all_gather_object(self, value, name):
        with rank_heartbeat.current().collective(name):  # which its messages are not called
            return super().all_gather_object(value, name)

    def _wrapped(self, group):
        return TimedCommunicator(group, self._size)

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
