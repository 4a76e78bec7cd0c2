"""The interface through which all other rooms talk to the other ranks, so that it can be counted or replaced."""

import abc
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from keras_par.base.json_values import plain
from keras_par.comm.agreed import AgreedValueError, require_one_place
from keras_par.plan.options import ReduceBy

ReduceOp = Literal["sum", "mean", "min", "max"]
Route = Literal["engine", "shared_memory", "two_levels"]
ENGINES = {"mpi": "Horovod over MPI", "gloo": "Horovod over Gloo", "tensorflow": "TensorFlow over gRPC"}  # in sentences
OBJECT = "kp.object"  # what collectives are called that carry objects
DIGEST_BYTES, LABEL_BYTES = 16, 24


@dataclass(frozen=True)
class Collective:
    """What a kind of collective takes and does."""

    has_list: bool  # it takes several tensors, as one message or as one after another
    is_reduced: bool  # it computes with numbers; others move bytes of any type


COLLECTIVES = {
    "all_reduce": Collective(has_list=True, is_reduced=True),
    "reduce_scatter": Collective(has_list=True, is_reduced=True),
    "all_gather": Collective(has_list=False, is_reduced=False),
    "all_gather_equal": Collective(has_list=True, is_reduced=False),
    "all_to_all": Collective(has_list=False, is_reduced=False),
    "broadcast": Collective(has_list=True, is_reduced=False),
}


class Request(NamedTuple):
    """One collective, for which all ranks ask alike.

    Args:
        kind: one of `COLLECTIVES`.
        name: of this one.
        op: of an all-reduce.
        sent_as: of what is reduced, see `Communicator.all_reduce`.
        root_rank: of a broadcast.
    """

    kind: str
    name: str
    op: ReduceOp = "sum"
    sent_as: tf.DType | None = None
    root_rank: int = 0


class Communicator(abc.ABC):
    """Collectives over all ranks of the job, or over a group of them, within which ranks count from 0.

    Every rank must call the same collectives with the same names, in the same order where they are in a graph: sums
    through shared memory wait for each other. Eager calls with different names may come in any order, and a name may
    be used again once its last call is complete. All work eagerly and inside `tf.function`, where an unused result may
    be pruned, on every rank alike.
    """

    engine: str
    ranks: tuple[int, ...]  # those that take part, by their numbers in the job
    rank: int
    size: int
    local_rank: int
    local_size: int

    gpu: str | None = None  # that this rank computes on, among those of its host
    no_nccl: str | None = None  # why the engine does not sum on GPUs
    no_shared_memory: str | None = None  # why sums cannot go through shared memory, the same on all ranks
    reduces_by: Route | None = None  # the way of sums in graphs, None where nothing is sent
    gathers_at_once: bool = False  # `all_gather_equal` is one collective in a graph

    def routed_by(self, reduce_by: ReduceBy) -> "Communicator":
        """This communicator, with its sums in graphs by the way that is chosen; both ways may be used side by side.

        Args:
            reduce_by: "engine" or "horovod" by its messages; "auto" and "shared_memory" leave shared memory where it
                is, see `no_shared_memory`.
        """
        return self

    def route(self, kind: str, tensors: Sequence[tf.Tensor], op: ReduceOp = "sum") -> Route | None:
        """Which way a collective of this kind would go, called here and now."""
        return self.reduces_by

    @property
    def has_groups(self) -> bool:
        """True if ranks may be in collectives that others have no part in."""
        return False

    @abc.abstractmethod
    def issue(self, request: Request, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What a collective makes of this rank's tensors; the methods below say what each kind does."""

    def all_reduce(
        self, tensors: Sequence[tf.Tensor], name: str, op: ReduceOp = "sum", sent_as: tf.DType | None = None
    ) -> list[tf.Tensor]:
        """Reduces each of `tensors` (equal shapes on all ranks, one dtype) over the ranks, as one fused message.

        Args:
            tensors: this rank's.
            name: the collective's.
            op: which reduction.
            sent_as: the dtype of what is sent, and to which sums are rounded; None for the tensors' own.

        Costs one all-reduce of the tensors' total size as they are sent.
        """
        return self.issue(Request("all_reduce", name, op, sent_as), tensors)

    def all_gather(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Concatenates the ranks' `tensor` along dim 0, in rank order; the lengths of dim 0 may differ.

        Costs one all-gather, and one of the lengths.
        """
        return self.issue(Request("all_gather", name), [tensor])[0]

    def all_gather_equal(self, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """As `all_gather` each of `tensors`, whose shapes are known while tracing and the same on all ranks.

        Costs an all-gather of each, through shared memory one of all.
        """
        if self.gathers_at_once:
            return self.issue(Request("all_gather_equal", name), tensors)
        return [self.all_gather(tensor, f"{name}.{i}") for i, tensor in enumerate(tensors)]

    def all_to_all(self, tensor: tf.Tensor, name: str) -> tf.Tensor:
        """Sends the i-th of `size` equal parts of dim 0 to rank i and concatenates what arrives, in rank order."""
        return self.issue(Request("all_to_all", name), [tensor])[0]

    def reduce_scatter(
        self, tensors: Sequence[tf.Tensor], name: str, sent_as: tf.DType | None = None
    ) -> list[tf.Tensor]:
        """The sums over ranks of the i-th of `size` parts of dim 0, on rank i, as one fused message.

        Parts are equal, or the first ones have a row more than the others.

        Args:
            tensors: of equal shapes on all ranks, and of one dtype.
            name: the collective's.
            sent_as: as in `all_reduce`.

        Costs one reduce-scatter of the tensors' total size as they are sent.
        """
        return self.issue(Request("reduce_scatter", name, sent_as=sent_as), tensors)

    def broadcast(self, tensors: Sequence[tf.Tensor], name: str, root_rank: int = 0) -> list[tf.Tensor]:
        """Gives every rank the root's `tensors` (equal shapes and dtypes on all ranks). One broadcast each."""
        return self.issue(Request("broadcast", name, root_rank=root_rank), tensors)

    def group(self, groups: Sequence[Sequence[int]]) -> "Communicator":
        """Collectives over the ranks of the group that this rank is in.

        Every rank of the job must call it with the same groups in the same order. Costs a few messages to all ranks
        the first time that groups are asked for.

        Args:
            groups: disjoint groups that hold every rank of the job, each in ascending order.
        """
        raise RuntimeError("keras-par: a group of ranks has no groups of its own: ask the job's communicator.")

    def shutdown(self) -> None:
        """Leaves the job; pending collectives on other ranks fail instead of waiting."""
        raise RuntimeError("keras-par: a group of ranks cannot leave the job: shut down the job's communicator.")

    def all_gather_object(self, value: Any, name: str) -> list[Any]:
        """The ranks' values, anything JSON can carry, in rank order; one object for all where they are the same.

        Eager only; costs an all-gather of 24 bytes a rank, and where values differ one of them.

        Raises:
            AgreedValueError: on every rank, if they have come to calls of different names.
        """
        # All such calls meet under one name, so that ranks that have parted are told, and do not wait for each other.
        own = json.dumps([name, value], default=plain).encode()
        joined = self._gather_bytes(label_of(own), f"{OBJECT}.label")
        labels = [joined[start : start + LABEL_BYTES] for start in range(0, len(joined), LABEL_BYTES)]
        if len(set(labels)) == 1:
            return [json.loads(own)[1]] * len(labels)
        everything, found, start = self._gather_bytes(own, f"{OBJECT}.data"), [], 0
        for label in labels:
            end = start + int.from_bytes(label[DIGEST_BYTES:])
            found.append(json.loads(everything[start:end]))
            start = end
        require_one_place([each[0] for each in found])
        return [each[1] for each in found]

    def _gather_bytes(self, own: bytes, name: str) -> bytes:
        return self.all_gather(tf.io.decode_raw(own, tf.uint8), name).numpy().tobytes()

    def all_agree(self, flag: bool, name: str) -> bool:
        """True if `flag` is true on every rank. Eager only; costs one all-reduce of a scalar."""
        [least] = self.all_reduce([tf.constant(int(flag))], name, "min")
        return bool(least)

    def barrier(self, name: str) -> None:
        """Returns once every rank has called it. Eager only; costs one all-reduce of a scalar."""
        self.all_reduce([tf.constant(0, tf.int32)], name)


def cast_to_send(
    communicator: Communicator, request: Request, tensors: Sequence[tf.Tensor], sent_as: tf.DType
) -> list[tf.Tensor]:
    """What a collective makes of tensors that are cast to be sent, in their own dtypes."""
    results = communicator.issue(request._replace(sent_as=None), [tf.cast(tensor, sent_as) for tensor in tensors])
    return [tf.cast(result, tensor.dtype) for result, tensor in zip(results, tensors, strict=True)]


def label_of(data: bytes) -> bytes:
    """What tells data from other data, and how long it is, in LABEL_BYTES."""
    return hashlib.sha256(data).digest()[:DIGEST_BYTES] + len(data).to_bytes(LABEL_BYTES - DIGEST_BYTES)


class SoloCommunicator(Communicator):
    """One rank, that of a job of one process; every collective is the identity."""

    engine = "solo"
    ranks = (0,)
    rank = local_rank = 0
    size = local_size = 1

    def issue(self, request, tensors):
        return list(tensors)

    def group(self, groups):
        return self

    def shutdown(self):
        pass


def gather_or_raise(communicator: Communicator, name: str, value: Any, complaint: str | None) -> list[Any]:
    """All ranks' `value`s, unless one has a complaint: then every rank raises the first one.

    Args:
        communicator: who is asked.
        name: the collective's name.
        value: anything JSON can carry.
        complaint: one sentence about what is wrong on this rank, or None.

    Raises:
        AgreedValueError: on every rank, with the complaint of the lowest rank that has one. Where not all ranks
            have it, it names that rank.

    Costs two all-gathers of a few bytes.
    """
    answers = communicator.all_gather_object([value, complaint], name)
    complaints = [answer[1] for answer in answers]
    first = next((rank for rank, text in enumerate(complaints) if text), None)
    if first is not None:
        where = "" if all(complaints) else f" (on rank {first})"
        raise AgreedValueError(f"keras-par: {complaints[first]}{where}")
    return [answer[0] for answer in answers]
