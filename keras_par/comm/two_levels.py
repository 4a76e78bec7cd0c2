"""Collectives over hosts in two levels: between hosts each byte is sent once for each host, not for each rank."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from keras_par.comm.communicator import COLLECTIVES, Communicator, cast_to_send
from keras_par.comm.differentiable import with_gradient
from keras_par.comm.fusion import fused, gathered, parts_of_ranks, separated
from keras_par.comm.shared_memory import DTYPES, NOT_BYTES, SharedMemoryCommunicator

KINDS = ("all_reduce", "reduce_scatter", "all_gather_equal")


class TwoLevelCommunicator(SharedMemoryCommunicator):
    """Sums and gathers in graphs over all ranks of a job that has as many ranks on each host; passes on the rest.

    The ranks of a host add up a part of the tensors each, through the memory that they share. Those with the same part
    add them up over hosts by the engine, all parts at the same time. Then the ranks of a host gather the parts. So each
    host sends 2 (H - 1) / H times the tensors' bytes, H being the number of hosts (Jia et al., "Highly Scalable Deep
    Learning Training System with Mixed-Precision", 2018). A reduce-scatter is the first half of that, and a gather the
    second, with (H - 1) / H times the bytes each; a ring of N ranks has each host send (N - 1) / N.

    Args:
        inner: the engine's.
        local: the ranks of this host, through shared memory.
        hosts: the ranks of each host, in order.
    """

    def __init__(self, inner: Communicator, local: Communicator, hosts: Sequence[Sequence[int]]):
        super().__init__(inner, None, -1)
        self._columns = [sorted(ranks) for ranks in zip(*hosts, strict=True)]  # with the same place on each host
        self._local, self._across = local, inner.group(self._columns)
        self.reduces_by, self.gathers_at_once = "two_levels", True

    def route(self, kind, tensors, op="sum"):
        if tf.executing_eagerly() or kind not in KINDS or op != "sum":
            return "engine"
        is_reduced = COLLECTIVES[kind].is_reduced
        is_known = all(each.dtype in DTYPES if is_reduced else each.dtype not in NOT_BYTES for each in tensors)
        return "two_levels" if is_known else "engine"

    def issue(self, request, tensors):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.route(request.kind, tensors, request.op) == "engine":
            return self.inner.issue(request, tensors)
        if request.sent_as not in (None, tensors[0].dtype):
            return cast_to_send(self, request, tensors, request.sent_as)
        name = request.name
        if request.kind == "reduce_scatter":
            return self._scattered_sums(tensors, name)
        if request.kind == "all_gather_equal":
            return gathered(tensors, lambda flat: self._of_each_rank(flat, f"{name}.{flat.dtype.name}"))

        @tf.custom_gradient
        def call(*given):
            return self._sum(given, name), lambda *upstream: self.all_reduce(upstream, f"{name}.gradient")

        return list(with_gradient(call, lambda *given: self._sum(given, name), tensors))

    def _sum(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Each tensor's sum over the ranks. Costs a reduce-scatter, an all-reduce of a part and an all-gather."""
        flat = fused(tensors)
        filled = tf.pad(flat, [[0, -tf.size(flat) % self._local.size]])
        [part] = self._local.reduce_scatter([filled], f"{name}.within")
        [part] = self._across.all_reduce([part], f"{name}.across")
        return separated(self._local.all_gather(part, f"{name}.whole")[: tf.size(flat)], tensors)

    def _scattered_sums(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """This rank's rows of each sum. Costs a reduce-scatter within the host, and one of a part between hosts."""
        parts = parts_of_ranks(tensors, self.size)
        lengths = [sum(each.shape.num_elements() for each in part) for part in parts]
        flat = []
        for rank in itertools.chain(*self._columns):
            missing = lengths[0] - lengths[rank]
            flat += [*parts[rank], *([tf.zeros([missing], tensors[0].dtype)] if missing else [])]
        [column] = self._local.reduce_scatter([fused(flat)], f"{name}.within")
        [own] = self._across.reduce_scatter([column], f"{name}.across")
        return separated(own[: lengths[self.rank]], parts[self.rank])

    def _of_each_rank(self, flat: tf.Tensor, name: str) -> list[tf.Tensor]:
        """Each rank's tensor, of one shape. Costs a gather between hosts, and one within the host."""
        [column] = self._across.all_gather_equal([flat], f"{name}.across")
        [everything] = self._local.all_gather_equal([column], f"{name}.within")
        of_rank = dict(zip(itertools.chain(*self._columns), tf.split(everything, self.size), strict=True))
        return [of_rank[rank] for rank in range(self.size)]
