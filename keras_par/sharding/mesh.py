"""A mesh of the job's ranks and the communicators along its axes."""

from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.plan.layout import Axes, shard_of
from keras_par.plan.mesh import Mesh
from keras_par.plan.options import ReduceBy


class RankMesh:
    """The mesh as this rank sees it; equal meshes are equal.

    Args:
        plan: which rank stands where.
        batch_axis: the axis along which ranks have other rows, None if no strategy says so.
        reduce_by: the way of sums along axes that hold all ranks.
    """

    def __init__(self, plan: Mesh, batch_axis: str | None = None, reduce_by: ReduceBy = "auto"):
        self.plan, self.batch_axis, self._reduce_by = plan, batch_axis, reduce_by

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

    def along(self, axis: str) -> Communicator:
        """The communicator of the ranks that differ from this one in their place along `axis` only.

        The groups of all axes are made the first time one is asked for, on all ranks together.
        """
        job = world.current().through(self._reduce_by)
        found = {name: job.group(self.plan.groups(name)) for name in self.plan.axis_names}
        return found[axis]

    def described(self, operands, labels, result, undivided) -> None:
        """Told of each operation that names dims; a mesh of ranks need not know."""

    def local_shape(self, shape, axes: Axes) -> tuple[int, ...]:
        """Shape of this rank's shard of a tensor of `shape`."""
        return tuple(part.stop - part.start for part in self.shard(shape, axes))

    def shard(self, shape, axes: Axes) -> tuple[slice, ...]:
        """The part of a tensor of `shape` that this rank holds."""
        return shard_of(shape, axes, self.plan, world.current().rank)
