"""Collectives of a job that has not been started, for tracing what a rank of it would do."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.plan.layout import part_of


class PlannedCommunicator(Communicator):
    """Gives tensors of the shapes that the collectives of `ranks` would give, made of this process's own.

    Args:
        ranks: of the job, or of a group of them.
        rank: the one whose part is traced, by its number in the job.
    """

    engine = "planned"
    gathers_at_once = True  # as ranks of one host do

    def __init__(self, ranks: Sequence[int], rank: int = 0):
        self.ranks, self._own = tuple(ranks), rank
        self.rank, self.size = self.ranks.index(rank), len(self.ranks)
        self.local_rank, self.local_size = self.rank, self.size

    def all_reduce(self, tensors, name, op="sum", sent_as=None):
        return [tf.identity(tensor) for tensor in tensors]

    def all_gather(self, tensor, name):
        gathered = tf.concat([tensor] * self.size, 0)
        if tf.executing_eagerly():
            return gathered
        return tf.compat.v1.placeholder_with_default(gathered, [None, *tensor.shape[1:]])  # others may be longer

    def all_gather_equal(self, tensors, name):
        return [tf.concat([tensor] * self.size, 0) for tensor in tensors]

    def all_to_all(self, tensor, name):
        return tf.identity(tensor)

    def reduce_scatter(self, tensors, name, sent_as=None):
        return [tensor[part_of(tensor.shape[0], self.size, self.rank)] for tensor in tensors]

    def broadcast(self, tensors, name, root_rank=0):
        return [tf.identity(tensor) for tensor in tensors]

    def group(self, groups):
        return PlannedCommunicator(next(ranks for ranks in groups if self._own in ranks), self._own)

    def all_gather_object(self, value: Any, name: str) -> list[Any]:
        return [value] * self.size

    def shutdown(self):
        pass
