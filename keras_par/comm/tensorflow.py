"""Collectives by TensorFlow's own operations, which are in its wheel: nothing is built, ranks talk over gRPC."""

import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_par.comm.communicator import COLLECTIVES, Communicator, Request, SoloCommunicator, cast_to_send
from keras_par.comm.differentiable import with_gradient
from keras_par.comm.fusion import fused, gathered, parts_of_ranks, separated, sum_as_bfloat16
from keras_par.comm.tensorflow_server import TensorFlowServer, task

MOVED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)  # dtypes that all of the operations take
GROUPS, MOST_KEY = 16, 0x7FFFFFFF  # keys of one set of ranks; the largest key
MOST_DIMS = 32  # of a tensor whose dims are not known
# What is reduced in a dtype that has room for it; others that cannot be sent TensorFlow refuses.
WIDER = {tf.bfloat16: tf.float32, **dict.fromkeys((tf.int8, tf.uint8, tf.int16, tf.uint16), tf.int32)}
MERGES = {"sum": "Add", "mean": "Add", "min": "Min", "max": "Max"}


class Key(NamedTuple):
    """What tells a collective from others, so that ranks that give it other tensors wait, and take no wrong ones.

    Args:
        name: with all that is known of the tensors.
        shapes: a number for their shapes.
    """

    name: str
    shapes: int | tf.Tensor

    def part(self, name: object) -> "Key":
        """One of the messages by which it goes."""
        return Key(f"{self.name}.{name}", self.shapes)


class TensorFlowCollectives(Communicator):
    """Collectives of some ranks of the job by `tf.raw_ops.Collective*`.

    On processors TensorFlow has sums, gathers and broadcasts. What is exchanged goes by a broadcast for each two ranks
    and direction, in a group of the two; a reduce-scatter is such an exchange, and a sum in the order of the ranks.

    Args:
        ranks: among all of the job.
        rank: this one, among all of the job.
        local: its number on its host, and how many ranks are there.
    """

    engine = "tensorflow"
    reduces_by = "engine"
    no_nccl = "keras-par calls TensorFlow's collectives of processors: take Horovod for NCCL"
    gathers_at_once = True

    def __init__(self, ranks: Sequence[int], rank: int, local: tuple[int, int]):
        self.ranks, self.rank, self.size = tuple(ranks), ranks.index(rank), len(ranks)
        self.local_rank, self.local_size = local
        self._device = f"{task(rank)}/device:CPU:0"
        self._traced: dict[tuple, Callable] = {}  # functions that run one collective

    def issue(self, request, tensors):
        kind, name, op, sent_as, _ = request
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        dtype = tensors[0].dtype
        if COLLECTIVES[kind].is_reduced:
            if kind == "all_reduce" and op == "sum" and tf.bfloat16 in (sent_as, dtype):
                return sum_as_bfloat16(self, tensors, name)
            sent_as = sent_as or WIDER.get(dtype, dtype)
            if sent_as != dtype:
                return cast_to_send(self, request, tensors, sent_as)
        if not tf.executing_eagerly():
            with tf.device(self._device):
                return self._issue(request, tensors)
        if kind != "all_reduce" or op not in ("sum", "mean"):  # others have no gradient, which a tape would ask for
            tensors = [tf.stop_gradient(tensor) for tensor in tensors]
        return self._traced_for(request, tensors)(*tensors)

    def _traced_for(self, request: Request, tensors: Sequence[tf.Tensor]) -> Callable:
        """A function that runs a collective, whose operations are sent and received at the same time.

        Eagerly each would wait for the one before.
        """
        any_length = not COLLECTIVES[request.kind].has_list
        specs = tuple(tf.TensorSpec([None, *t.shape[1:]] if any_length else t.shape, t.dtype) for t in tensors)
        if (request, specs) not in self._traced:
            function = tf.function(lambda *each: self.issue(request, each), input_signature=specs, autograph=False)
            self._traced[request, specs] = function.get_concrete_function()
        return self._traced[request, specs]

    def _issue(self, request: Request, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """A collective in the graph being traced."""
        kind, name, op, _, root = request
        first, ranks = tensors[0], self.ranks
        about = [name, kind, op, root, *(tensor.dtype.name for tensor in tensors)]
        key = Key(" ".join(map(str, about)), shapes_of(tensors, 1 if kind == "all_gather" else 0))
        return {
            "all_reduce": lambda: self._all_reduce(tensors, key, name, op),
            "reduce_scatter": lambda: self._reduce_scatter(tensors, key),
            "all_gather": lambda: [self._all_gather(first, key)],
            "all_gather_equal": lambda: gathered(
                tensors, lambda flat: tf.split(self._gather(flat, key.part(flat.dtype.name)), self.size)
            ),
            "all_to_all": lambda: [tf.concat(self._exchange(tf.split(first, self.size), key), 0)],
            "broadcast": lambda: [self._broadcast(t, ranks, root, key.part(i)) for i, t in enumerate(tensors)],
        }[kind]()

    def _all_reduce(self, tensors: list[tf.Tensor], key: Key, name: str, op: str) -> list[tf.Tensor]:
        def reduce(*given):
            flat = fused(given)
            flat = tf.raw_ops.CollectiveReduceV2(
                input=flat,
                **self._about(self.ranks, key, flat),
                merge_op=MERGES[op],
                final_op="Div" if op == "mean" else "Id",
                ordering_token=[],
            )
            return separated(flat, given)

        @tf.custom_gradient
        def call(*given):
            return reduce(*given), lambda *upstream: self.all_reduce(upstream, f"{name}.gradient", op)

        return list(with_gradient(call, reduce, tensors)) if op in ("sum", "mean") else reduce(*tensors)

    def _reduce_scatter(self, tensors: list[tf.Tensor], key: Key) -> list[tf.Tensor]:
        parts = parts_of_ranks(tensors, self.size)
        sums = tf.add_n(self._exchange([fused(part) for part in parts], key))
        return separated(sums, parts[self.rank])

    def _all_gather(self, tensor: tf.Tensor, key: Key) -> tf.Tensor:
        """Rows of all ranks, filled up to the most that one has while they are sent."""
        length = tf.shape(tensor)[0]
        lengths = self._gather(length[None], key.part("lengths"))
        most = tf.maximum(tf.reduce_max(lengths), 1)
        filled = tf.pad(tensor, [[0, most - length], *[[0, 0]] * (len(tensor.shape) - 1)])
        rows = tf.boolean_mask(self._gather(filled, key), tf.reshape(tf.sequence_mask(lengths, most), [-1]))
        return tf.ensure_shape(rows, [None, *tensor.shape[1:]])

    def _gather(self, tensor: tf.Tensor, key: Key) -> tf.Tensor:
        """Rows of all ranks, of which each has as many."""
        sent = moved(tensor)
        about = self._about(self.ranks, key, sent)
        found = tf.raw_ops.CollectiveGatherV2(input=sent, **about, ordering_token=[])
        return tf.concat([restored(each, tensor) for each in tf.split(found, self.size)], 0)

    def _exchange(self, parts: Sequence[tf.Tensor], key: Key) -> list[tf.Tensor]:
        """What each rank gave for this one, in the order of the ranks, of the shape of this rank's own part.

        Args:
            parts: for each rank.
            key: the collective's.
        """
        me, own, sent, found = self.ranks[self.rank], parts[self.rank], [], []
        for peer, part in zip(self.ranks, parts, strict=True):
            pair = tuple(sorted((me, peer)))
            if peer != me:
                sent.append(self._broadcast(part, pair, pair.index(me), key.part(me)))
                found.append(self._broadcast(own, pair, pair.index(peer), key.part(peer)))
            else:
                found.append(own)
        with tf.control_dependencies(sent):  # which nobody uses, and TensorFlow would leave out
            return [tf.identity(each) for each in found]

    def _broadcast(self, tensor: tf.Tensor, ranks: tuple[int, ...], root: int, key: Key) -> tf.Tensor:
        """The root's tensor among some ranks of the job, of the shape and dtype that is given on each."""
        sent = moved(tensor)
        about = self._about(ranks, key, sent)
        if ranks[root] == self.ranks[self.rank]:
            return restored(tf.raw_ops.CollectiveBcastSendV2(input=sent, **about), tensor)
        return restored(tf.raw_ops.CollectiveBcastRecvV2(T=sent.dtype, shape=tf.shape(sent), **about), tensor)

    def _about(self, ranks: tuple[int, ...], key: Key, sent: tf.Tensor) -> dict:
        """By what TensorFlow knows the ranks and the collective, the same on all of them.

        It remembers the kind, root, dtype and length of each instance of a group, so that another one of these is
        another instance. There are more groups than sets of ranks, so that no two of many collectives are likely to
        have one number.
        """
        number = key_of(key.name, *ranks)
        group = key_of("ranks", *ranks, number % GROUPS)
        length = sent.shape.num_elements()
        instance = sum_of(number, key.shapes, tf.size(sent) if length is None else length)
        return {"group_size": len(ranks), "group_key": group, "instance_key": instance}


class TensorFlowCommunicator(TensorFlowCollectives):
    """All ranks of a job, connected by TensorFlow's servers.

    They are once `connect` was called, with which TensorFlow takes its devices.

    Args:
        rank: this one.
        size: number of ranks.
        local: its number on its host, and how many ranks are there.
    """

    def __init__(self, rank: int, size: int, local: tuple[int, int]):
        super().__init__(range(size), rank, local)
        self._groups: dict[tuple[int, ...], Communicator] = {}
        self._server = TensorFlowServer(rank, size)
        self.connect = self._server.connect

    @property
    def has_groups(self) -> bool:
        """True: each two ranks have collectives of their own."""
        return True

    def group(self, groups):
        own = next(tuple(ranks) for ranks in groups if self.rank in ranks)
        if len(own) == self.size:
            return self
        if len(own) == 1:
            return SoloCommunicator()
        if own not in self._groups:
            self._groups[own] = TensorFlowCollectives(own, self.rank, (self.local_rank, self.local_size))
        return self._groups[own]

    def shutdown(self):
        self._server.leave()


def key_of(*parts: object) -> int:
    """A number for some names, positive and of 32 bits, which all ranks find alike."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4]) & MOST_KEY


def shapes_of(tensors: Sequence[tf.Tensor], first_dim: int) -> int | tf.Tensor:
    """A number for the shapes of tensors, which other shapes hardly have; known while tracing where these are.

    Args:
        tensors: of any shapes.
        first_dim: before which dims may be of any length.
    """
    known, others = 0, []
    for place, tensor in enumerate(tensors):
        is_known = tensor.shape.rank is not None and tensor.shape[first_dim:].is_fully_defined()
        dims = range(first_dim, tensor.shape.rank if is_known else MOST_DIMS)
        factors = [key_of("shape", place, dim) for dim in dims]
        if is_known:
            known += sum(map(operator.mul, factors, tensor.shape[first_dim:]))
        else:
            lengths = tf.shape(tensor)[first_dim:]
            others.append(tf.reduce_sum(lengths * tf.constant(factors)[: tf.size(lengths)]))
    return sum_of(known, *others)


def sum_of(*numbers: int | tf.Tensor) -> int | tf.Tensor:
    """The sum of whole numbers in the 31 bits that keys have, an int where all are."""
    known = sum(number for number in numbers if isinstance(number, int)) & MOST_KEY
    others = [number for number in numbers if not isinstance(number, int)]
    return tf.bitwise.bitwise_and(tf.add_n([tf.constant(known), *others]), MOST_KEY) if others else known


def moved(tensor: tf.Tensor) -> tf.Tensor:
    """The elements of a tensor end to end; of dtypes that cannot be sent their bytes as int32, filled up with zeros."""
    if tensor.dtype in MOVED:
        return tf.reshape(tensor, [-1])
    if tensor.dtype == tf.bool:
        tensor = tf.cast(tensor, tf.uint8)
    flat = tf.reshape(tensor if tensor.dtype == tf.uint8 else tf.bitcast(tensor, tf.uint8), [-1])
    return tf.bitcast(tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % 4]]), [-1, 4]), tf.int32)


def restored(flat: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The tensor that `moved` was given, of the shape and dtype of another."""
    if like.dtype not in MOVED:
        stored = tf.uint8 if like.dtype == tf.bool else like.dtype
        flat = tf.reshape(tf.bitcast(flat, tf.uint8), [-1])[: tf.size(like) * stored.size]
        flat = flat if stored.size == 1 else tf.bitcast(tf.reshape(flat, [-1, stored.size]), stored)
        flat = tf.cast(flat, like.dtype)
    return tf.ensure_shape(tf.reshape(flat, tf.shape(like)), like.shape)
