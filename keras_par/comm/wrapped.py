"""What communicators have in common that pass each collective on to another one and look at it on the way."""

from keras_par.comm.communicator import Communicator


class WrappedCommunicator(Communicator):
    """Passes every collective to `inner`, those of its groups too; subclasses look at it in `issue`."""

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

    def issue(self, request, tensors):
        return self.inner.issue(request, tensors)

    def _wrapped(self, group: Communicator) -> Communicator:
        """A wrapper like this one around a group of `inner`."""
        return type(self)(group)

    def group(self, groups):
        group = self.inner.group(groups)
        return self if group is self.inner else group if group.size == 1 else self._wrapped(group)

    def shutdown(self):
        self.inner.shutdown()
