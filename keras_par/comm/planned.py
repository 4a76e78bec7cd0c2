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

    def issue(self, request, tensors):
        make = {
            "all_gather": self._gathered,
            "all_gather_equal": lambda tensor: tf.concat([tensor] * self.size, 0),
            "reduce_scatter": lambda tensor: tensor[part_of(tensor.shape[0], self.size, self.rank)],
        }.get(request.kind, tf.identity)
        return list(map(make, tensors))

    def _gathered(self, tensor: tf.Tensor) -> tf.Tensor:
        gathered = tf.concat([tensor] * self.size, 0)
        if tf.executing_eagerly():
            return gathered
        return tf.compat.v1.placeholder_with_default(gathered, [None, *tensor.shape[1:]])  # others may be longer

    def group(self, groups):
        return PlannedCommunicator(next(ranks for ranks in groups if self._own in ranks), self._own)

    def all_gather_object(self, value: Any, name: str) -> list[Any]:
        return [value] * self.size

    def shutdown(self):
        pass
