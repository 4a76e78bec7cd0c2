"""Sums over several hosts in two levels: between hosts each byte is sent once for each host, not for each rank."""

from collections.abc import Sequence

import tensorflow as tf

from keras_par.comm.communicator import Communicator, cast_to_send
from keras_par.comm.differentiable import with_gradient
from keras_par.comm.fusion import fused, separated
from keras_par.comm.shared_memory import DTYPES, SharedMemoryCommunicator


class TwoLevelCommunicator(SharedMemoryCommunicator):
    """Sums in graphs over all ranks of a job that has as many ranks on each of several hosts; passes on the rest.

    The ranks of a host add up a part of the tensors each, through the memory that they share. Those with the same part
    add them up over hosts by the engine, all parts at the same time. Then the ranks of a host gather the parts. So each
    host sends 2 (H - 1) / H times the tensors' bytes, H being the number of hosts (Jia et al., "Highly Scalable Deep
    Learning Training System with Mixed-Precision", 2018).

    Args:
        inner: the engine's.
        local: the ranks of this host, through shared memory.
        across: those with the same place on each host.
    """

    def __init__(self, inner: Communicator, local: Communicator, across: Communicator):
        super().__init__(inner, None, -1)
        self._local, self._across = local, across
        self.reduces_by = "two_levels"

    def route(self, kind, tensors, op="sum"):
        is_sum = kind == "all_reduce" and op == "sum" and all(tensor.dtype in DTYPES for tensor in tensors)
        return "two_levels" if is_sum and not tf.executing_eagerly() else "engine"

    def issue(self, request, tensors):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.route(request.kind, tensors, request.op) == "engine":
            return self.inner.issue(request, tensors)
        if request.sent_as is not None:
            return cast_to_send(self, request, tensors, request.sent_as)
        name = request.name

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
