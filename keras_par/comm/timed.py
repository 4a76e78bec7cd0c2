"""A communicator that measures how long collectives take, inside traced steps too, where Python cannot look."""

import threading
import time

import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.comm.wrapped import WrappedCommunicator


class Stopwatch:
    """Adds up the time in which at least one collective was under way; several threads may use it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Sets the time to zero."""
        with self._lock:
            self._num_under_way, self._since, self._seconds = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """The time since the last `restart`, of collectives that are complete."""
        with self._lock:
            return self._seconds

    def begin(self) -> bool:
        """Notes that a collective is under way."""
        with self._lock:
            if self._num_under_way == 0:
                self._since = time.perf_counter()
            self._num_under_way += 1
        return True

    def end(self) -> bool:
        """Notes that a collective is complete."""
        with self._lock:
            self._num_under_way -= 1
            if self._num_under_way == 0:
                self._seconds += time.perf_counter() - self._since
        return True


class MeasuringCommunicator(WrappedCommunicator):
    """Passes every collective to `inner` and adds up the time in which at least one of them was under way.

    A collective is under way from the moment its tensors are there on this rank until its result is: that is the
    wait for the other ranks and the transfer. Collectives that overlap count once. The clock is read by a call into
    Python before and after each collective, tens of microseconds together; a step must be traced while this
    communicator is the active one. Where a GPU works ahead of Python the clock is too early; untested there.
    """

    def __init__(self, inner: Communicator, stopwatch: Stopwatch | None = None):
        super().__init__(inner)
        self._stopwatch = stopwatch or Stopwatch()

    def restart(self) -> None:
        """Sets the time to zero."""
        self._stopwatch.restart()

    @property
    def seconds(self) -> float:
        """The time in collectives since the last `restart`, of those that are complete."""
        return self._stopwatch.seconds

    def _pass(self, kind, name, collective, tensors, op="sum", sent_as=None, root_rank=0):
        if tf.executing_eagerly():
            self._stopwatch.begin()
            try:
                return collective(tensors)
            finally:
                self._stopwatch.end()
        return after(collective(after(tensors, self._stopwatch.begin)), self._stopwatch.end)

    def _wrapped(self, group):
        return MeasuringCommunicator(group, self._stopwatch)


def after(tensors, function) -> list[tf.Tensor]:
    """`tensors` in the graph being traced, which calls `function` when all are there and before any is used."""
    tensors = [tf.identity(tensor) for tensor in tensors]
    with tf.control_dependencies(tensors):
        called = tf.numpy_function(function, [], tf.bool)
    # TensorFlow would call such functions in the order of the program, and so make collectives wait for each other.
    manager = getattr(called.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(called.op)
    with tf.control_dependencies([called]):
        return [tf.identity(tensor) for tensor in tensors]
