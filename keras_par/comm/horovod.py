"""Collectives by Horovod's TensorFlow operations; its own Keras layer does nothing on Keras 3 and is not used."""

import importlib.metadata
from typing import Any

import tensorflow as tf

from keras_par.comm.communicator import Communicator


def load():
    """Imports Horovod's operations.

    Raises:
        RuntimeError: Horovod is not installed, or does not load with the TensorFlow installed here.
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
    return mpi_ops


class HorovodCommunicator(Communicator):
    """All ranks of a job started by `horovodrun` or `mpirun`, connected by MPI or Gloo.

    Uses the operations of `horovod.tensorflow.mpi_ops`, whose underscored functions are the only ones that take
    a name; Horovod 0.28.1 is the last release and the only one supported.

    Raises:
        RuntimeError: Horovod does not load, or has no support for `engine`.
    """

    def __init__(self, engine: str):
        self._ops = load()
        built = self._ops.mpi_built() if engine == "mpi" else self._ops.gloo_built()
        if not built:
            raise RuntimeError(
                f"keras-par: the job was started for {engine}, but Horovod was built without it: "
                f"run 'keras-par install-horovod --engine {engine} --rebuild'."
            )
        self._ops.init()
        self._traced: dict[tuple, Any] = {}  # functions that run one collective
        self.engine = engine
        self.rank, self.size = self._ops.rank(), self._ops.size()
        self.local_rank, self.local_size = self._ops.local_rank(), self._ops.local_size()
        self._op = {
            "sum": self._ops.Sum,
            "mean": self._ops.Average,
            "min": self._ops.Min,
            "max": self._ops.Max,
        }

    def all_reduce(self, tensors, name, op="sum"):
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        if tensors[0].dtype == tf.bfloat16:  # not among Horovod's types
            wide = self.all_reduce([tf.cast(tensor, tf.float32) for tensor in tensors], name, op)
            return [tf.cast(tensor, tf.bfloat16) for tensor in wide]
        options = {"name": name, "op": self._op[op], "ignore_name_scope": True}

        def operation(*tensors):
            if len(tensors) == 1:
                return [self._ops._allreduce(tensors[0], **options)]
            return self._ops._grouped_allreduce(list(tensors), **options)

        return self._call(operation, ("all_reduce", name, op), tensors)

    def all_gather(self, tensor, name):
        if tensor.dtype == tf.bfloat16:
            return tf.bitcast(self.all_gather(tf.bitcast(tensor, tf.uint16), name), tf.bfloat16)

        def operation(tensor):
            return [self._ops.allgather(tensor, name=name, ignore_name_scope=True)]

        return self._call(operation, ("all_gather", name), [tensor], any_length=True)[0]

    def all_to_all(self, tensor, name):
        def operation(tensor):
            return [self._ops.alltoall(tensor, name=name, ignore_name_scope=True)]

        return self._call(operation, ("all_to_all", name), [tensor], any_length=True)[0]

    def broadcast(self, tensors, name, root_rank=0):
        def operation(*tensors):
            return [
                self._ops.broadcast(tensor, root_rank, name=f"{name}.{i}", ignore_name_scope=True)
                for i, tensor in enumerate(tensors)
            ]

        return self._call(operation, ("broadcast", name, root_rank), tensors)

    def _call(self, operation, key: tuple, tensors, any_length: bool = False) -> list[tf.Tensor]:
        """What `operation` makes of the tensors; eagerly, by a function traced once for each key and type.

        TensorFlow drops the names of operations that run eagerly, so that Horovod would join calls of different
        names on different ranks, in silence. A traced one keeps its name. It costs some 7 ms the first time.
        """
        if not tf.executing_eagerly():
            return operation(*tensors)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        shapes = [[None, *tensor.shape[1:]] if any_length else tensor.shape for tensor in tensors]
        specs = tuple(tf.TensorSpec(shape, tensor.dtype) for shape, tensor in zip(shapes, tensors, strict=True))
        if (key, specs) not in self._traced:
            function = tf.function(operation, input_signature=specs, autograph=False)
            self._traced[key, specs] = function.get_concrete_function()
        return list(self._traced[key, specs](*tensors))

    def shutdown(self):
        self._ops.shutdown()
