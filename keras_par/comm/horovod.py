"""Collectives by Horovod's TensorFlow operations; its own Keras layer does nothing on Keras 3 and is not used."""

import importlib.metadata
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_par.base.addresses import require_own_address
from keras_par.comm.agreed import AgreedRuntimeError
from keras_par.comm.communicator import COLLECTIVES, Communicator, Request, SoloCommunicator, cast_to_send
from keras_par.comm.fusion import sum_as_bfloat16


def load(engine: str):
    """Imports Horovod's operations.

    Args:
        engine: that shall connect the ranks, "mpi" or "gloo".

    Raises:
        RuntimeError: Horovod is not installed, does not load with the TensorFlow installed here, or would die.
    """
    try:
        from horovod.tensorflow import mpi_ops
    except ModuleNotFoundError as error:
        if error.name != "horovod":
            raise
        raise RuntimeError(
            "keras-par: this job has several ranks but Horovod is not installed: run 'keras-par install-horovod'."
        ) from None
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RuntimeError(
            f"keras-par: Horovod {importlib.metadata.version('horovod')} does not load with TensorFlow "
            f"{tf.__version__}, it was probably built for another one ({reason}): "
            "run 'keras-par install-horovod --rebuild'."
        ) from error
    if engine == "gloo":
        require_own_address()
    return mpi_ops


def may_have_groups(size: int) -> bool:
    """True if a job of so many ranks can have groups of several ranks: not if the number is a prime."""
    return any(size % divisor == 0 for divisor in range(2, size))


class HorovodCollectives(Communicator):
    """The collectives of one of Horovod's process sets.

    Uses the operations of `horovod.tensorflow.mpi_ops`, whose underscored functions are the only ones that take
    a name; Horovod 0.28.1 is the last release and the only one supported.

    Args:
        operations: what `load` returns.
        engine: "mpi" or "gloo".
        ranks: of the set among all of the job.
        process_set: Horovod's.
    """

    def __init__(self, operations: Any, engine: str, ranks: tuple[int, ...], process_set: Any):
        self._ops, self.engine, self.ranks = operations, engine, ranks
        self.reduces_by = "engine"
        self._traced: dict[tuple, Any] = {}  # functions that run one collective
        self.rank, self.size = ranks.index(self._ops.rank()), len(ranks)
        self.local_rank, self.local_size = self._ops.local_rank(), self._ops.local_size()
        self._op = {
            "sum": self._ops.Sum,
            "mean": self._ops.Average,
            "min": self._ops.Min,
            "max": self._ops.Max,
        }
        self._common = {"ignore_name_scope": True, "process_set": process_set}
        self._device: str | None = "cpu"  # NCCL refuses ranks that share a GPU; None leaves the choice to TensorFlow

    def issue(self, request, tensors):
        kind, name, op, sent_as, _ = request
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if kind == "all_gather_equal":
            return [self.all_gather(tensor, f"{name}.{i}") for i, tensor in enumerate(tensors)]
        if COLLECTIVES[kind].is_reduced:
            if kind == "all_reduce" and op == "sum" and sent_as == tf.bfloat16:
                return sum_as_bfloat16(self, tensors, name)
            if sent_as is not None or tensors[0].dtype == tf.bfloat16:  # which is not among Horovod's types
                return cast_to_send(self, request, tensors, sent_as or tf.float32)
        elif kind == "all_gather" and tensors[0].dtype == tf.bfloat16:
            [rows] = self.issue(request, [tf.bitcast(tensors[0], tf.uint16)])
            return [tf.bitcast(rows, tf.bfloat16)]
        return self._call(self._operation(request), request, tensors)

    def _operation(self, request: Request) -> Callable[..., list[tf.Tensor]]:
        """What Horovod has for a request, as a function of tensors."""
        kind, name, op, _, root_rank = request
        ops, common = self._ops, self._common

        def reduction(one: Callable, several: Callable) -> Callable[..., list[tf.Tensor]]:
            options = {"name": name, "op": self._op[op], **common}
            return lambda *each: [one(*each, **options)] if len(each) == 1 else several(list(each), **options)

        if kind == "all_reduce":
            return reduction(ops._allreduce, ops._grouped_allreduce)
        if kind == "reduce_scatter":
            return reduction(ops._reducescatter, ops._grouped_reducescatter)
        if kind == "broadcast":
            root = self.ranks[root_rank]
            return lambda *each: [ops.broadcast(t, root, name=f"{name}.{i}", **common) for i, t in enumerate(each)]
        one = {"all_gather": ops.allgather, "all_to_all": ops.alltoall}[kind]
        return lambda tensor: [one(tensor, name=name, **common)]

    def _call(self, operation: Callable, request: Request, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        """What `operation` makes of the tensors; eagerly, by a function traced once for each request and type.

        TensorFlow drops the names of operations that run eagerly, so that Horovod would join calls of different
        names on different ranks, in silence. A traced one keeps its name. It costs some 7 ms the first time.
        """
        if not tf.executing_eagerly():
            with tf.device(self._device):
                return operation(*tensors)
        any_length = not COLLECTIVES[request.kind].has_list
        shapes = [[None, *tensor.shape[1:]] if any_length else tensor.shape for tensor in tensors]
        specs = tuple(tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, tensors, strict=True))
        if (request, specs) not in self._traced:
            with tf.device(self._device):
                function = tf.function(operation, input_signature=specs, autograph=False)
                self._traced[request, specs] = function.get_concrete_function()
        return list(self._traced[request, specs](*tensors))


class HorovodCommunicator(HorovodCollectives):
    """All ranks of a job started by `horovodrun` or `mpirun`, connected by MPI or Gloo.

    Args:
        engine: "mpi" or "gloo".
        size: number of ranks that were launched.

    Raises:
        RuntimeError: Horovod does not load, has no support for `engine`, or connects another number of ranks.
    """

    def __init__(self, engine: str, size: int):
        operations = load(engine)
        built = operations.mpi_built() if engine == "mpi" else operations.gloo_built()
        if not built:
            raise RuntimeError(
                f"keras-par: the job was started for {engine}, but Horovod was built without it: "
                f"run 'keras-par install-horovod --engine {engine} --rebuild'."
            )
        # Meshes are made later than communication. In this mode Horovod's thread keeps operations from being queued
        # while it waits for other ranks in each cycle, which slows ranks that are not bound to cores, so that a
        # number of ranks without divisors, whose meshes have no groups, does without.
        if may_have_groups(size):
            os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        operations.init()
        if operations.size() != size:
            raise RuntimeError(
                f"keras-par: {size} processes were started together but {engine} connects {operations.size()} of them, "
                "as when the launcher belongs to another MPI than Horovod: start the script by 'keras-par run'."
            )
        super().__init__(operations, engine, tuple(range(operations.size())), operations.global_process_set)
        self._groups: dict[tuple[int, ...], HorovodCollectives | None] = {}
        if not operations.nccl_built():
            self.no_nccl = "Horovod was built without NCCL: run 'keras-par install-horovod --gpu'"

    def use_gpus(self) -> None:
        """Lets NCCL sum what is on GPUs, of which every rank must have its own; until then all go over the host."""
        self._device = None
        self._traced.clear()

    @property
    def has_groups(self) -> bool:
        """True once a group of several ranks was made."""
        return bool(self._groups)

    def group(self, groups):
        own = next(tuple(ranks) for ranks in groups if self.rank in ranks)
        if len(own) == self.size:
            return self
        for ranks in map(tuple, groups):
            if len(ranks) > 1 and ranks not in self._groups:
                made = self._make(ranks)
                group = HorovodCollectives(self._ops, self.engine, ranks, made) if self.rank in ranks else None
                if group is not None:
                    group._device = self._device
                self._groups[ranks] = group
        return self._groups[own] if len(own) > 1 else SoloCommunicator()

    def _make(self, ranks: tuple[int, ...]) -> Any:
        """A process set of Horovod's."""
        try:
            return self._ops.add_process_set(list(ranks))
        except ValueError as error:
            raise AgreedRuntimeError(
                f"keras-par: the mesh needs a group of the ranks {list(ranks)}, and Horovod makes none: {error} Leave "
                "starting Horovod to kp.init(), and HOROVOD_DYNAMIC_PROCESS_SETS unset."
            ) from error

    def shutdown(self):
        self._ops.shutdown()
