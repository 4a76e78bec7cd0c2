"""A tensor of which each rank holds a shard, and which becomes whole wherever something needs it so."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.plan.division import Move, divide, indexed
from keras_par.plan.layout import Axes
from keras_par.sharding.collectives import changed, gather, is_lost
from keras_par.sharding.mesh import RankMesh


class ShardedTensor(tf.__internal__.types.Tensor):
    """A tensor that the ranks along some axes of a mesh divide among themselves.

    Its shape is the whole tensor's, so that code need not know that it is divided. TensorFlow's functions, and
    operations of Keras's for which there is no rule, take `whole()`, which costs one all-gather for each divided dim,
    once. Rules take `local`.

    Args:
        local: this rank's shard.
        axes: for each dim the axis that divides it, or None.
        mesh: of the axes.
    """

    __array_priority__ = 100  # NumPy leaves operators to tensors

    def __init__(self, local: tf.Tensor, axes: Axes, mesh: RankMesh):
        self._local, self.axes, self.mesh = local, tuple(axes), mesh
        shape = [
            size if axis is None else size * mesh.size(axis)
            for size, axis in zip(local.shape.as_list(), axes, strict=True)
        ]
        self._shape = tf.TensorShape(shape)
        self._whole: tuple[Any, tf.Tensor] | None = None

    @property
    def local(self) -> tf.Tensor:
        """This rank's shard."""
        return self._local

    @property
    def shape(self) -> tf.TensorShape:
        """Of the whole tensor."""
        return self._shape

    @property
    def dtype(self) -> tf.DType:
        """Of its elements."""
        return self.local.dtype

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.axes)

    def whole(self) -> tf.Tensor:
        """The whole tensor, on every rank. Costs one all-gather for each divided dim, the first time in a graph."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._whole is None or self._whole[0] is not graph or graph is None or is_lost(self.local, self._whole[1]):
            full = self.local
            for dim, axis in enumerate(self.axes):
                if axis is not None:
                    full = gather(full, dim, self.mesh.along(axis))
            self._whole = graph, full
        return self._whole[1]

    def part(self, moves: Sequence[Move]) -> tf.Tensor:
        """The shard after some moves. Where these gather all that is divided, it is `whole`."""
        num_divided = sum(axis is not None for axis in self.axes)
        if moves and len(moves) == num_divided and all(move.kind == "gather" for move in moves):
            return self.whole()
        return changed(self.local, moves, self.mesh.along)

    def begin(self, dim: int) -> int:
        """Where this rank's shard begins along a dim."""
        return 0 if self.axes[dim] is None else self.local.shape[dim] * self.group(dim).rank

    def group(self, dim: int) -> Communicator:
        """The ranks that divide `dim` among themselves, which must be divided."""
        axis = self.axes[dim]
        assert axis is not None
        return self.mesh.along(axis)

    def with_local(self, local: tf.Tensor) -> "ShardedTensor":
        """A tensor of the same layout."""
        return ShardedTensor(local, self.axes, self.mesh)

    def get_shape(self) -> tf.TensorShape:
        """As TensorFlow has it."""
        return self._shape

    def numpy(self):
        """The whole tensor's value."""
        return self.whole().numpy()

    def __tf_tensor__(self, dtype=None, name=None):
        return tf.convert_to_tensor(self.whole(), dtype=dtype, name=name)

    def __array__(self, dtype=None, copy=None):
        return self.whole().__array__(dtype)

    def __len__(self) -> int:
        return len(self.whole())

    def __iter__(self):
        return iter(self.whole())

    def __bool__(self) -> bool:
        return bool(self.whole())

    def __float__(self) -> float:
        return float(self.whole())

    def __int__(self) -> int:
        return int(self.whole())

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<ShardedTensor shape={self.shape}, axes={self.axes}, dtype={self.dtype.name}>"

    def __getitem__(self, index):
        named = indexed(index, self.ndim)
        if named is None:
            return self.whole()[index]

        def run() -> Any:
            division = divide(named, [self.axes], self.mesh.size)
            local = self.part(division.operands[0])[index]
            return ShardedTensor(local, division.result, self.mesh) if any(division.result) else local

        return self.mesh.computed([self], named, None, run)


def of_shards(local: tf.Tensor, axes: Axes, mesh: RankMesh, shape: Sequence[int]) -> tf.Tensor | ShardedTensor:
    """The tensor of this shape that has these shards, of which those are gathered that are not equally long."""
    axes = tuple(axes)
    for dim, axis in enumerate(axes):
        if axis is not None and shape[dim] % mesh.size(axis):
            local = gather(local, dim, mesh.along(axis), shape[dim])
            axes = (*axes[:dim], None, *axes[dim + 1 :])
    return ShardedTensor(local, axes, mesh) if any(axes) else local


def whole(value: Any) -> Any:
    """`value`, of which no rank has only a shard."""
    return value.whole() if isinstance(value, ShardedTensor) else value


BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "true_divide",
    "floordiv": "floor_divide",
    "mod": "mod",
    "pow": "power",
    "matmul": "matmul",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
}
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
UNARY = {"neg": "negative", "abs": "absolute", "invert": "logical_not"}


def define_operators() -> None:
    """Gives ShardedTensor Python's operators, each by the operation of Keras's that has rules."""

    def define(name: str, operation: str, is_swapped: bool = False) -> None:
        def operator(self, *others):
            name = operation.replace("logical", "bitwise") if self.dtype.is_integer else operation
            return getattr(keras.ops, name)(*(reversed((self, *others)) if is_swapped else (self, *others)))

        setattr(ShardedTensor, f"__{name}__", operator)

    for name, operation in (BINARY | COMPARISONS | UNARY).items():
        define(name, operation)
    for name, operation in BINARY.items():
        define(f"r{name}", operation, is_swapped=True)


define_operators()
