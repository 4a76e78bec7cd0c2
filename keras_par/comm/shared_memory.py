"""Sums and gathers a step's gradients through memory that the ranks of one host share, faster than by messages."""

import ctypes
import logging
import os
import secrets
import stat
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_par.comm import native
from keras_par.comm.communicator import Communicator
from keras_par.comm.wrapped import WrappedCommunicator

VARIABLE = "KERAS_PAR_SHARED_MEMORY"  # "0" does without
# Each rank reads what all have written: the work grows with the ranks, where that of a ring's messages does not.
MOST_RANKS = 8
LAST = "_keras_par_last_sum"  # an attribute of graphs
DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64)

logger = logging.getLogger("keras_par")


class SharedMemoryCommunicator(WrappedCommunicator):
    """Sums through shared memory what is summed in graphs, over all ranks and on their processors; passes on the rest.

    It also gathers there what has equal shapes on all ranks. The sums are added up in the order of the ranks, with the
    same bits on all of them. A rank that waits uses its core, but lets other threads go first. When another rank has
    left or died, or is in another collective, the operation fails with an AbortedError that says so.

    Args:
        inner: Horovod's.
        operations: those of the compiled library.
        functions: the library's functions.
    """

    def __init__(self, inner: Communicator, operations: Any, functions: ctypes.CDLL):
        global _order
        super().__init__(inner)
        self._operations, self._functions = operations, functions
        if _order is None:  # made in a function that is being traced, it would have that traced once more
            with tf.device("cpu"):
                _order = tf.Variable(0, trainable=False)

    def all_reduce(self, tensors, name, op="sum"):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if self.road("all_reduce", tensors, op) == "horovod":
            return self.inner.all_reduce(tensors, name, op)
        return sums(self._operations, tensors, name)

    @property
    def reduces_by(self):
        """Sums of gradients are in graphs."""
        return "shared_memory"

    def through(self, reduce_by):
        return self.inner if reduce_by == "horovod" else self

    def road(self, kind, tensors, op="sum"):
        is_known = kind in ("all_reduce", "all_gather_equal") and all(tensor.dtype in DTYPES for tensor in tensors)
        return "shared_memory" if is_known and op == "sum" and not tf.executing_eagerly() else "horovod"

    @property
    def gathers_at_once(self) -> bool:
        """True: one copy into shared memory carries all tensors."""
        return True

    def all_gather_equal(self, tensors, name):
        if self.road("all_gather_equal", tensors) == "horovod":
            return super().all_gather_equal(tensors, name)
        words = [tf.reshape(tf.bitcast(tensor, tf.int32), [-1]) for tensor in tensors]
        lengths = [word.shape[0] for word in words]
        own = tf.concat(words, 0)
        [gathered] = in_order(
            lambda order: [
                self._operations.keras_par_shared_gather(tensor=own, order=order, size=self.size, collective=name)
            ]
        )
        gathered.set_shape([self.size, own.shape[0]])
        return [
            from_words(part, tensor, self.size)
            for part, tensor in zip(tf.split(gathered, lengths, 1), tensors, strict=True)
        ]

    def shutdown(self):
        self._functions.keras_par_shared_leave()
        self.inner.shutdown()

    def _pass(self, kind, name, collective, tensors, op="sum"):
        return collective(tensors)

    def _wrapped(self, group):
        return group


_order: tf.Variable | None = None


def sums(operations: Any, tensors: list[tf.Tensor], name: str) -> list[tf.Tensor]:
    """The tensors' sums, in the graph being traced."""
    return in_order(lambda order: operations.keras_par_shared_sum(tensors=tensors, order=order, collective=name))


def in_order(make: Callable[[tf.Tensor], list[tf.Tensor]]) -> list[tf.Tensor]:
    """An operation in the graph being traced, after all through shared memory that the program has come to before.

    All ranks must run them in the same order. Operations that share a variable's handle do, in whichever functions
    and branches they are; a graph of gradients, which TensorFlow does not order by itself, gets a chain.
    """
    assert _order is not None
    graph = tf.compat.v1.get_default_graph()
    before = getattr(graph, LAST, None)
    with tf.device("cpu"), tf.control_dependencies([] if before is None else [before]):
        results = make(_order.handle)
    setattr(graph, LAST, results[0].op)
    return list(results)


def from_words(words: tf.Tensor, like: tf.Tensor, size: int) -> tf.Tensor:
    """The tensors of `size` ranks along dim 0, each of the type and shape of `like`, from words of four bytes."""
    shape = [size * like.shape[0], *like.shape[1:]]
    if like.dtype.size == 8:
        return tf.bitcast(tf.reshape(words, [*shape, 2]), like.dtype)
    return tf.bitcast(tf.reshape(words, shape), like.dtype)


@tf.RegisterGradient("KerasParSharedSum")
def gradients(operation: tf.Operation, *upstream: tf.Tensor) -> list[tf.Tensor | None]:
    """The sums of the upstream gradients, as Horovod's operations have it."""
    name = operation.get_attr("collective").decode()
    return [*sums(tf.load_op_library(str(native.library())), list(upstream), f"{name}.gradient"), None]


def shared(communicator: Communicator) -> Communicator:
    """`communicator` with sums through shared memory, where all its ranks can share some; else itself, knowing why not.

    Costs four all-gathers of some bytes, and where the library is not compiled yet, some seconds.
    """
    if communicator.size == 1:
        return communicator
    offer, file, functions = None, -1, None
    why = refusal(communicator)
    if why is None and communicator.rank == 0:
        offer, file, why = make(communicator.size)
    answers = communicator.all_gather_object([offer, why], "kp.shared.offer")
    offer, why = answers[0][0], next((answer[1] for answer in answers if answer[1]), None)
    if offer is not None and why is None:
        functions, why = joined(offer, communicator.rank, communicator.size)
    whys = communicator.all_gather_object(why, "kp.shared.joined")
    if file >= 0:
        os.close(file)
    why = next(filter(None, whys), None)
    if functions is None or offer is None or why is not None:
        if functions is not None:
            functions.keras_par_shared_leave()
        communicator.no_shared_memory = why
        logger.info("keras-par: sums go through Horovod, not through shared memory, because %s", why)
        return communicator
    return SharedMemoryCommunicator(communicator, tf.load_op_library(offer["library"]), functions)


def refusal(communicator: Communicator) -> str | None:
    """Why this rank would not share memory with all others, None if it would."""
    if communicator.size > MOST_RANKS:
        return f"{communicator.size} ranks are more than the {MOST_RANKS} that it serves"
    if communicator.local_size != communicator.size:
        return "the ranks are on several hosts"
    if tf.config.list_physical_devices("GPU"):
        return "the ranks compute on GPUs"
    if os.environ.get(VARIABLE, "1") == "0":
        return f"{VARIABLE}=0 is set on rank {communicator.rank}"
    return None


def make(size: int) -> tuple[dict[str, Any] | None, int, str | None]:
    """On rank 0, what the others need to know to share memory, and its open file; or why there is none."""
    file = -1
    try:
        library = str(native.library())
        num_bytes = loaded(library).keras_par_shared_bytes(size)
        file = os.memfd_create("keras-par")
        os.posix_fallocate(file, 0, num_bytes)
    except (RuntimeError, OSError, tf.errors.OpError) as error:
        if file >= 0:
            os.close(file)
        return None, -1, first_line(error)
    token = secrets.token_bytes(16)
    os.pwrite(file, token, 0)
    return {"path": f"/proc/{os.getpid()}/fd/{file}", "token": token.hex(), "library": library}, file, None


def joined(offer: dict[str, Any], rank: int, size: int) -> tuple[ctypes.CDLL | None, str | None]:
    """The library's functions, once this rank takes part in what rank 0 offers; or why it cannot."""
    try:
        functions = loaded(offer["library"])
        file = opened(offer["path"], bytes.fromhex(offer["token"]))
    except (OSError, tf.errors.OpError) as error:
        return None, f"rank {rank} cannot share memory with rank 0 ({first_line(error)})"
    try:
        if functions.keras_par_shared_join(file, rank, size) == 0:
            return functions, None
        return None, f"rank {rank} cannot map the memory of rank 0"
    finally:
        os.close(file)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].removeprefix("keras-par: ").rstrip(".")


def opened(path: str, token: bytes) -> int:
    """The descriptor of rank 0's file.

    Raises:
        OSError: the path leads to nothing, or to something else, on another host or in another container.
    """
    with open(path, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(token)) != token:
            raise OSError(f"{path} is another file here")
    return os.open(path, os.O_RDWR)


def loaded(library: str) -> ctypes.CDLL:
    """The library's functions; TensorFlow loads it first, or would not see its operation.

    Raises:
        OSError, tf.errors.OpError: it does not load on this host.
    """
    tf.load_op_library(library)
    functions = ctypes.CDLL(library)
    functions.keras_par_shared_bytes.restype = ctypes.c_int64
    return functions
