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

    def _pass(self, kind, name, collective, tensors, op="sum", sent_as=None, root_rank=0):
        results = collective(tensors)
        return (
            self.replicas.all_reduce(results, f"{name}.replicas", sent_as=sent_as)
            if kind == "reduce_scatter"
            else results
        )

    def _wrapped(self, group):
        return group
