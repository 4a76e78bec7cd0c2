"""A communicator that records every collective it passes on, because counts can be tested where timings cannot."""

from dataclasses import dataclass

import tensorflow as tf

from keras_par.comm import call_site
from keras_par.comm.communicator import Communicator, Route
from keras_par.comm.wrapped import WrappedCommunicator


@dataclass(frozen=True)
class Call:
    """One collective as this rank issued it; inside a `tf.function`, as it was traced."""

    kind: str
    name: str
    num_bytes: int | None  # as they are sent; None where a shape is not known while tracing
    shapes: tuple[tuple[int | None, ...], ...]
    ranks: tuple[int, ...]  # those that take part
    layer: str  # the path of the layer that asked for it, empty outside of layers
    source: str  # the line of code that did, as "dense.py:132"
    route: Route | None = None  # None where nothing is sent

    @property
    def size(self) -> int:
        """Number of ranks that take part."""
        return len(self.ranks)


class CountedCommunicator(WrappedCommunicator):
    """Appends a `Call` to `calls` for every collective, also of its groups of ranks."""

    def __init__(self, inner: Communicator, calls: list[Call] | None = None):
        super().__init__(inner)
        self.calls: list[Call] = [] if calls is None else calls

    def issue(self, request, tensors):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        sent_as = request.sent_as
        is_known = all(tensor.shape.is_fully_defined() for tensor in tensors)
        total = sum(each.shape.num_elements() * (sent_as or each.dtype).size for each in tensors) if is_known else None
        shapes = tuple(tuple(tensor.shape.as_list()) for tensor in tensors)
        route = self.inner.route(request.kind, tensors, request.op)
        kind = request.kind.removesuffix("_equal")
        self.calls.append(Call(kind, request.name, total, shapes, self.ranks, *call_site.current(), route))
        return self.inner.issue(request, tensors)

    def _wrapped(self, group):
        return CountedCommunicator(group, self.calls)
