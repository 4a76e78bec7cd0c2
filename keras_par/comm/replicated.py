"""Ranks that have a part each of something of which other ranks have replicas: sums are over all of them."""

from keras_par.comm.communicator import Communicator
from keras_par.comm.wrapped import WrappedCommunicator


class ReplicatedCommunicator(WrappedCommunicator):
    """The ranks that divide one replica, whose reduce-scatters sum over all replicas.

    A reduce-scatter costs an all-reduce of this rank's part besides, over the ranks that have the same part.

    Args:
        inner: the ranks of this replica.
        replicas: the ranks with the same part.
    """

    def __init__(self, inner: Communicator, replicas: Communicator):
        super().__init__(inner)
        self.replicas = replicas

    def issue(self, request, tensors):
        results = self.inner.issue(request, tensors)
        if request.kind != "reduce_scatter":
            return results
        return self.replicas.all_reduce(results, f"{request.name}.replicas", sent_as=request.sent_as)

    def _wrapped(self, group):
        return group
