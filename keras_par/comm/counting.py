"""A communicator that records every collective it passes on, because counts can be tested where timings cannot."""

from dataclasses import dataclass

import tensorflow as tf

from keras_par.comm.communicator import Communicator


@dataclass(frozen=True)
class Call:
    """One collective as this rank issued it; inside a `tf.function`, as it was traced."""

    kind: str
    name: str
    num_bytes: int | None  # None where a shape is not known while tracing


class CountingCommunicator(Communicator):
    """Passes every collective to `inner` and appends a `Call` to `calls`."""

    def __init__(self, inner: Communicator):
        self._inner = inner
        self.calls: list[Call] = []
        self.engine, self.rank, self.size = inner.engine, inner.rank, inner.size
        self.local_rank, self.local_size = inner.local_rank, inner.local_size

    def all_reduce(self, tensors, name, op="sum"):
        self._record("all_reduce", name, tensors)
        return self._inner.all_reduce(tensors, name, op)

    def all_gather(self, tensor, name):
        self._record("all_gather", name, [tensor])
        return self._inner.all_gather(tensor, name)

    def all_to_all(self, tensor, name):
        self._record("all_to_all", name, [tensor])
        return self._inner.all_to_all(tensor, name)

    def broadcast(self, tensors, name, root_rank=0):
        self._record("broadcast", name, tensors)
        return self._inner.broadcast(tensors, name, root_rank)

    def shutdown(self):
        self._inner.shutdown()

    def _record(self, kind: str, name: str, tensors) -> None:
        sizes = [num_bytes(tf.convert_to_tensor(tensor)) for tensor in tensors]
        known = [size for size in sizes if size is not None]
        self.calls.append(Call(kind, name, sum(known) if len(known) == len(sizes) else None))


def num_bytes(tensor: tf.Tensor) -> int | None:
    """Size of `tensor` in bytes, None if its shape is not known while tracing."""
    elements = tensor.shape.num_elements()
    return None if elements is None else elements * tensor.dtype.size
