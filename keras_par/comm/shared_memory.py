"""Collectives of steps through memory that the ranks of one host share, faster than by messages."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_par.comm.branches import seen
from keras_par.comm.communicator import COLLECTIVES, Communicator, cast_to_send
from keras_par.comm.segments import Library, share
from keras_par.comm.wrapped import WrappedCommunicator
from keras_par.plan.layout import length_of

LAST = "_keras_par_last_shared"  # an attribute of graphs: the newest operation's token
DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.float16, tf.bfloat16)  # that are reduced
OPS = ("sum", "min", "max")  # in the order of the library's
NOT_BYTES = (tf.string, tf.resource, tf.variant)
# The first dim of results that differs from that of what was given: by its length, the number of ranks and the rank.
LENGTHS: dict[str, Callable[[int | None, int, int], int | None]] = {
    "reduce_scatter": lambda length, size, rank: None if length is None else length_of(length, size, rank),
    "all_gather": lambda length, size, rank: None,
    "all_gather_equal": lambda length, size, rank: None if length is None else size * length,
}


class SharedMemoryCommunicator(WrappedCommunicator):
    """Does through shared memory what is asked for in graphs, on the ranks' processors; passes on the rest.

    Sums are added up in the order of the ranks, with the same bits on all of them. A rank that waits uses its core, but
    lets other threads go first. When another rank has left or died, or is in another collective, the operation fails
    with an AbortedError that says so.

    Args:
        inner: the engine's.
        library: the compiled one, None where these ranks share no memory, but groups of them may.
        ring: the number by which its operations know the memory.
    """

    def __init__(self, inner: Communicator, library: Library | None, ring: int):
        global _order, _operations
        super().__init__(inner)
        self._library, self._ring = library, ring
        self.reduces_by = "engine" if library is None else "shared_memory"
        self.gathers_at_once = library is not None  # one copy into memory carries all tensors
        self._groups: dict[tuple[tuple[int, ...], ...], Communicator] = {}
        if library is not None:
            _operations = library.operations
        if _order is None:  # made in a function that is being traced, it would have that traced once more
            with tf.device("cpu"):
                _order = tf.Variable(0, trainable=False)

    def routed_by(self, reduce_by):
        return self.inner if reduce_by in ("engine", "horovod") else self

    def route(self, kind, tensors, op="sum"):
        if self._library is None or tf.executing_eagerly() or not hasattr(self._library.operations, operation_of(kind)):
            return "engine"
        if kind == "all_reduce" and op not in OPS:
            return "engine"
        if COLLECTIVES[kind].is_reduced:
            is_known = all(each.dtype in DTYPES for each in tensors)
        else:
            is_known = all(each.dtype not in NOT_BYTES for each in tensors)
        return "shared_memory" if is_known else "engine"

    def issue(self, request, tensors):
        kind, name, op, sent_as, root_rank = request
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.route(kind, tensors, op) == "engine":
            return self.inner.issue(request, tensors)
        if must_be_cast(tensors, op, sent_as):
            return cast_to_send(self, request, tensors, sent_as)
        assert self._library is not None
        option = OPS.index(op) if kind == "all_reduce" else root_rank
        in_memory = (sent_as or tensors[0].dtype) if COLLECTIVES[kind].is_reduced else None
        operations = self._library.operations
        results = run(operations, kind, tensors, name, self._ring, option, in_memory)
        for result, tensor in zip(results, tensors, strict=True):
            if kind in LENGTHS:
                result.set_shape([LENGTHS[kind](tensor.shape[0], self.size, self.rank), *tensor.shape[1:]])
        return results

    def group(self, groups):
        key = tuple(map(tuple, groups))
        own = next(ranks for ranks in key if self.rank in ranks)
        if len(own) == self.size:
            return self
        if key not in self._groups:
            inner = self.inner.group(groups)
            with tf.init_scope():  # a mesh's groups are made where they are first asked for, as in a traced step
                library, ring, inner.no_shared_memory = share(self.inner, groups)
            self._groups[key] = SharedMemoryCommunicator(inner, library, ring) if len(own) > 1 else inner
        return self._groups[key]

    def shutdown(self):
        for group in self._groups.values():
            if isinstance(group, SharedMemoryCommunicator):
                group.leave()
        self.leave()
        self.inner.shutdown()

    def leave(self) -> None:
        """Lets ranks that wait for this one have an error."""
        if self._library is not None:
            self._library.functions.keras_par_shared_leave(self._ring)

    def _wrapped(self, group):
        return group


_order: tf.Variable | None = None
_operations: Any = None


def must_be_cast(tensors: Sequence[tf.Tensor], op: str, sent_as: tf.DType | None) -> bool:
    """True if these tensors are to be sent in a dtype that the library does not give them on their way."""
    is_changed = op == "sum" and tensors[0].dtype == tf.float32 and sent_as in (tf.float16, tf.bfloat16)
    return sent_as not in (None, tensors[0].dtype) and not is_changed


def operation_of(kind: str) -> str:
    """What the library calls the operation of a collective, if it has one."""
    return f"keras_par_shared_{kind.removesuffix('_equal')}"


def run(
    operations: Any,
    kind: str,
    tensors: Sequence[Any],
    name: str,
    ring: int,
    option: int,
    sent_as: tf.DType | None = None,
) -> list[tf.Tensor]:
    """An operation in the graph being traced, after all through shared memory that the program has come to before.

    Args:
        operations: the library's.
        kind: "all_reduce" or another collective.
        tensors: that it takes.
        name: the collective's.
        ring: the memory's number.
        option: which reduction, or which rank is the root.
        sent_as: of a reduction, the dtype in which numbers lie in the memory.
    """
    given = [tf.convert_to_tensor(tensor) for tensor in tensors]
    operation = getattr(operations, operation_of(kind))
    is_one = kind == "all_to_all"
    more = {} if sent_as is None else {"sent_as": sent_as}

    def make(after: tf.Tensor, order: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        results, token = operation(
            tensors=given[0] if is_one else given,
            after=after,
            order=order,
            collective=name,
            ring=ring,
            option=option,
            **more,
        )
        return [results] if is_one else list(results), token

    return in_order(make)


def in_order(make: Callable[[tf.Tensor, tf.Tensor], tuple[list[tf.Tensor], tf.Tensor]]) -> list[tf.Tensor]:
    """The results of the operation that `make` makes, behind all others through shared memory.

    All ranks must run them in the same order. Operations that share a variable's handle do, in whichever functions
    and branches they are. Those of one graph hand on a token, too: a graph of gradients TensorFlow does not order by
    itself, and its optimizers take an edge of control for needless beside a path that they cut afterwards.

    Args:
        make: takes a token and the variable's handle, and gives results and the next token.
    """
    assert _order is not None
    graph = tf.compat.v1.get_default_graph()
    with tf.device("cpu"):
        last = getattr(graph, LAST, None)
        results, token = make(tf.constant(0) if last is None else last, seen(_order.handle))
    setattr(graph, LAST, token)
    return results


@tf.RegisterGradient("KerasParSharedAllReduce")
def gradients(operation: tf.Operation, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    """The sums of a sum's upstream gradients, as Horovod's operations have it.

    Raises:
        ValueError: it is another reduction.
    """
    option, name = operation.get_attr("option"), operation.get_attr("collective").decode()
    if OPS[option] != "sum":
        raise ValueError(f"keras-par: the {OPS[option]} over the ranks in {name} has no gradient: use kp.ops.")
    ring, sent_as = operation.get_attr("ring"), operation.get_attr("sent_as")
    sums = run(_operations, "all_reduce", upstream[:-1], f"{name}.gradient", ring, option, sent_as)
    return [*sums, None, None]
