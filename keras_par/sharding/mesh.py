"""A mesh of the job's ranks and the communicators along its axes."""

from collections.abc import Callable, Sequence
from typing import Any

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.plan.division import Named
from keras_par.plan.layout import Axes, shard_of
from keras_par.plan.mesh import REPLICA, Mesh
from keras_par.plan.options import ReduceBy


class RankMesh:
    """The mesh as this rank sees it; equal meshes are equal.

    Args:
        plan: which rank stands where.
        batch_axis: the axis along which ranks have other rows, None if no strategy says so.
        reduce_by: the way of sums along axes that hold all ranks.
        num_parts: how many neighbours along the batch axis divide one replica of what is divided along that axis; None
            for all of them. With fewer the plan has an axis of replicas besides.
    """

    def __init__(
        self,
        plan: Mesh,
        batch_axis: str | None = None,
        reduce_by: ReduceBy = "auto",
        num_parts: int | None = None,
    ):
        self.batch_axis, self._reduce_by, self._undivided = batch_axis, reduce_by, plan
        self.plan = plan
        if batch_axis is not None and num_parts not in (None, plan.size(batch_axis)):
            self.plan = plan.split(batch_axis, num_parts)

    def __eq__(self, other) -> bool:
        return isinstance(other, RankMesh) and self.plan == other.plan

    def __hash__(self) -> int:
        return hash(self.plan)

    def size(self, axis: str) -> int:
        """Number of ranks along an axis."""
        return self.plan.size(axis)

    @property
    def coordinates(self) -> dict[str, int]:
        """Where this rank stands along each axis."""
        return self.plan.coordinates(world.current().rank)

    @property
    def num_places(self) -> int:
        """How many places there are with other rows."""
        return 1 if self.batch_axis is None else self._undivided.size(self.batch_axis)

    @property
    def place(self) -> int:
        """Which of these this rank has."""
        return 0 if self.batch_axis is None else self._undivided.coordinates(world.current().rank)[self.batch_axis]

    @property
    def rows(self) -> Communicator:
        """The ranks with other rows that differ in nothing else; made as `along` makes its groups."""
        assert self.batch_axis is not None
        self.along(self.batch_axis)
        return self._job.group(self._undivided.groups(self.batch_axis))

    @property
    def _job(self) -> Communicator:
        return world.current().routed_by(self._reduce_by)

    def along(self, axis: str) -> Communicator:
        """The communicator of the ranks that differ from this one in their place along `axis` only.

        Along the batch axis a reduce-scatter sums over replicas, too. The groups of all axes are made the first time
        one is asked for, on all ranks together.
        """
        found = {name: self._job.group(self.plan.groups(name)) for name in self.plan.axis_names}
        if axis == self.batch_axis and self.plan is not self._undivided:
            return ReplicatedCommunicator(found[axis], found[REPLICA])
        return found[axis]

    def computed(
        self, operands: Sequence[Any], named: Named, otherwise: Callable | None, run: Callable[[], Any]
    ) -> Any:
        """`run()`, which computes what names its dims; see `compute` for the arguments."""
        return run()

    def local_shape(self, shape, axes: Axes) -> tuple[int, ...]:
        """Shape of this rank's shard of a tensor of `shape`."""
        return tuple(part.stop - part.start for part in self.shard(shape, axes))

    def shard(self, shape, axes: Axes) -> tuple[slice, ...]:
        """The part of a tensor of `shape` that this rank holds."""
        return shard_of(shape, axes, self.plan, world.current().rank)


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
