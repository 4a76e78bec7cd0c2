"""What communicators have in common that pass each collective on to another one and look at it on the way."""

import abc
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_par.comm.communicator import Communicator, ReduceOp


class WrappedCommunicator(Communicator):
    """Passes every collective to `inner` by way of `_pass`, those of its groups too."""

    def __init__(self, inner: Communicator):
        self.inner = inner
        self.engine, self.ranks, self.rank, self.size = inner.engine, inner.ranks, inner.rank, inner.size
        self.local_rank, self.local_size = inner.local_rank, inner.local_size
        self.no_shared_memory, self.reduces_by = inner.no_shared_memory, inner.reduces_by
        self.gathers_at_once = inner.gathers_at_once

    def routed_by(self, reduce_by):
        inner = self.inner.routed_by(reduce_by)
        return self if inner is self.inner else self._wrapped(inner)

    def route(self, kind, tensors, op="sum"):
        return self.inner.route(kind, tensors, op)

    @property
    def has_groups(self) -> bool:
        """As `inner` has it."""
        return self.inner.has_groups

    @abc.abstractmethod
    def _pass(
        self,
        kind: str,
        name: str,
        collective: Callable[[list[tf.Tensor]], list[tf.Tensor]],
        tensors: Sequence[tf.Tensor],
        op: ReduceOp = "sum",
        sent_as: tf.DType | None = None,
        root_rank: int = 0,
    ) -> list[tf.Tensor]:
        """What `collective`, one call of `inner`, makes of `tensors`.

        Args:
            kind: one of `COLLECTIVES`.
            name: the collective's.
            collective: passes tensors on, with the options below.
            tensors: this rank's.
            op: of an all-reduce.
            sent_as: of what is reduced.
            root_rank: of a broadcast.
        """

    def _wrapped(self, group: Communicator) -> Communicator:
        """A wrapper like this one around a group of `inner`."""
        return type(self)(group)

    def all_reduce(self, tensors, name, op="sum", sent_as=None):
        inner = self.inner.all_reduce
        return self._pass("all_reduce", name, lambda given: inner(given, name, op, sent_as), tensors, op, sent_as)

    def all_gather(self, tensor, name):
        return self._pass("all_gather", name, lambda given: [self.inner.all_gather(given[0], name)], [tensor])[0]

    def all_gather_equal(self, tensors, name):
        return self._pass("all_gather_equal", name, lambda given: self.inner.all_gather_equal(given, name), tensors)

    def all_to_all(self, tensor, name):
        return self._pass("all_to_all", name, lambda given: [self.inner.all_to_all(given[0], name)], [tensor])[0]

    def reduce_scatter(self, tensors, name, sent_as=None):
        inner = self.inner.reduce_scatter
        return self._pass("reduce_scatter", name, lambda given: inner(given, name, sent_as), tensors, sent_as=sent_as)

    def broadcast(self, tensors, name, root_rank=0):
        inner = self.inner.broadcast
        return self._pass("broadcast", name, lambda given: inner(given, name, root_rank), tensors, root_rank=root_rank)

    def group(self, groups):
        group = self.inner.group(groups)
        return self if group is self.inner else group if group.size == 1 else self._wrapped(group)

    def shutdown(self):
        self.inner.shutdown()
