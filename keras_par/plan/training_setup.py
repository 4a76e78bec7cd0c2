"""Where a model is trained: the machine, the mesh and the rows, by which bytes and collectives become seconds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keras_par.plan.case import Collective, Sent
from keras_par.plan.layout import Axes, length_of
from keras_par.plan.machine import Machine, Reach
from keras_par.plan.options import Options, Zero


@dataclass(frozen=True)
class Setting:
    """Where a model is to be trained.

    Args:
        machine: of each host.
        mesh: the sizes of its axes, by name, row-major.
        data_axis: the one along which ranks have other rows.
        batch_size: rows on all ranks together.
        zero: the stage of ZeRO.
        zero_min_kb: size in kilobytes below which a variable is left out of that.
    """

    machine: Machine
    mesh: Mapping[str, int]
    data_axis: str
    batch_size: int
    zero: Zero = Options.zero
    zero_min_kb: float = Options.zero_min_kb

    @property
    def num_ranks(self) -> int:
        """Of the mesh."""
        return math.prod(self.mesh.values())

    @property
    def num_rows(self) -> int:
        """On a rank."""
        return self.batch_size // self.mesh[self.data_axis]

    def reach(self, axis: str) -> Reach:
        """Where the ranks along an axis are, if ranks fill host after host."""
        names = list(self.mesh)
        span = math.prod(self.mesh[name] for name in names[names.index(axis) :])  # ranks from a group's first to last
        return "network" if span > self.machine.ranks_per_host else "host"

    def sent_seconds(self, sent: Sent) -> float:
        """Of a move, forward and backward."""
        return self.seconds_of(sent, sent.collectives)

    def forward_seconds(self, sent: Sent) -> float:
        """Of a move's part in the forward pass."""
        return self.seconds_of(sent, sent.forward)

    def seconds_of(self, sent: Sent, collectives: Sequence[tuple[Collective, int]]) -> float:
        """Of some collectives of a move; what is joined along another dim than the first is put in order besides."""
        size = self.mesh[sent.axis]
        seconds = sum(
            self.machine.send_seconds(kind, num_bytes, size, self.reach(sent.axis), sent.is_aside)
            for kind, num_bytes in collectives
        )
        num_orders = len(collectives) if sent.dim else 0
        whole = max(sent.num_elements, sent.num_after) * sent.item_bytes  # which is read and written
        return seconds + self.machine.compute_seconds(0, num_orders * 2 * whole, num_orders)

    def elements(self, shape: Sequence[int], axes: Axes) -> int:
        """Of the largest shard, if any number of ranks may divide a dim."""
        sizes = zip(shape, axes or (None,) * len(shape), strict=True)
        return math.prod(length_of(size, self.mesh[axis], 0) if axis else size for size, axis in sizes)

    def local_elements(self, shape: Sequence[int], axes: Axes) -> int:
        """Of a shard."""
        return math.prod(shape) // math.prod(self.mesh[axis] for axis in axes if axis is not None)
