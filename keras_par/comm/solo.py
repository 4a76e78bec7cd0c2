"""The communicator of a job with one process, which needs neither Horovod nor MPI."""

from keras_par.comm.communicator import Communicator


class SoloCommunicator(Communicator):
    """One rank; every collective is the identity."""

    engine = "solo"
    ranks = (0,)
    rank = local_rank = 0
    size = local_size = 1

    def all_reduce(self, tensors, name, op="sum", sent_as=None):
        return list(tensors)

    def all_gather(self, tensor, name):
        return tensor

    def all_to_all(self, tensor, name):
        return tensor

    def reduce_scatter(self, tensors, name, sent_as=None):
        return list(tensors)

    def broadcast(self, tensors, name, root_rank=0):
        return list(tensors)

    def group(self, groups):
        return self

    def shutdown(self):
        pass
