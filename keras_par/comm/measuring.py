"""A communicator that measures how long collectives take, inside traced steps too, where Python cannot look."""

import threading
import time

import tensorflow as tf

from keras_par.comm.communicator import Communicator


class MeasuringCommunicator(Communicator):
    """Passes every collective to `inner` and adds up the time in which at least one of them was under way.

    A collective is under way from the moment its tensors are there on this rank until its result is: that is the
    wait for the other ranks and the transfer. Collectives that overlap count once. The clock is read by a call into
    Python before and after each collective, tens of microseconds together; a step must be traced while this
    communicator is the active one. Where a GPU works ahead of Python the clock is too early; untested there.
    """

    def __init__(self, inner: Communicator):
        self.inner = inner
        self.engine, self.rank, self.size = inner.engine, inner.rank, inner.size
        self.local_rank, self.local_size = inner.local_rank, inner.local_size
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Sets the time to zero."""
        with self._lock:
            self._num_under_way, self._since, self._seconds = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """The time in collectives since the last `restart`, of those that are complete."""
        with self._lock:
            return self._seconds

    def all_reduce(self, tensors, name, op="sum"):
        return self._timed(lambda tensors: self.inner.all_reduce(tensors, name, op), tensors)

    def all_gather(self, tensor, name):
        return self._timed(lambda tensors: [self.inner.all_gather(tensors[0], name)], [tensor])[0]

    def all_to_all(self, tensor, name):
        return self._timed(lambda tensors: [self.inner.all_to_all(tensors[0], name)], [tensor])[0]

    def broadcast(self, tensors, name, root_rank=0):
        return self._timed(lambda tensors: self.inner.broadcast(tensors, name, root_rank), tensors)

    def shutdown(self):
        self.inner.shutdown()

    def _timed(self, call, tensors) -> list[tf.Tensor]:
        if tf.executing_eagerly():
            self._begin()
            try:
                return call(tensors)
            finally:
                self._end()
        tensors = after(tensors, self._begin)
        return after(call(tensors), self._end)

    def _begin(self) -> bool:
        with self._lock:
            if self._num_under_way == 0:
                self._since = time.perf_counter()
            self._num_under_way += 1
        return True

    def _end(self) -> bool:
        with self._lock:
            self._num_under_way -= 1
            if self._num_under_way == 0:
                self._seconds += time.perf_counter() - self._since
        return True


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
