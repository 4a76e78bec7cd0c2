"""Gives every rank one rank's variables, as a few large messages of bytes, or an object of one rank's."""

import math
import pickle
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from keras_par.base.environment import one_line
from keras_par.comm import world
from keras_par.comm.communicator import Communicator
from keras_par.plan.buckets import fill_buckets

MESSAGE_BYTES = 16 * 2**20  # of which a rank holds several copies meanwhile, up to ten over gRPC


def broadcast_variables(variables: Iterable, root_rank: int = 0, communicator: Communicator | None = None) -> None:
    """Assigns the values of rank `root_rank` to `variables` on every rank.

    Example:
        ```python
        kp.init()
        variable = keras.Variable([kp.rank(), 7.0])
        kp.broadcast_variables([variable])  # or model.variables + optimizer.variables
        variable.numpy().tolist()  # -> [0.0, 7.0]
        ```

    Eager only. Every rank must pass variables of the same shapes and dtypes in the same order.

    Args:
        variables: Keras or TensorFlow variables of any shapes and dtypes.
        root_rank: the rank whose values all get.
        communicator: the ranks that take part, all of the job unless given.

    Raises:
        RuntimeError: `kp.init()` was not called.

    Costs one broadcast for each 16 MiB.
    """
    communicator = communicator or world.current()
    variables = list(variables)
    if communicator.size == 1:
        return
    sizes = [math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables]
    for number, bucket in enumerate(fill_buckets(sizes, [None] * len(sizes), MESSAGE_BYTES)):
        types = [tf.TensorSpec(variables[i].shape, variables[i].dtype) for i in bucket]
        message = tf.concat([to_bytes(tf.convert_to_tensor(variables[i])) for i in bucket], 0)
        [message] = communicator.broadcast([message], f"kp.broadcast.{number}", root_rank)
        pieces = tf.split(message, [sizes[i] for i in bucket])
        for i, piece, kind in zip(bucket, pieces, types, strict=True):
            variables[i].assign(own(from_bytes(piece, kind)))


def broadcast_object(value: Any, root_rank: int = 0) -> Any:
    """The object that rank `root_rank` gives, on every rank a copy of its own.

    Example:
        ```python
        kp.init()
        settings = {"units": 8} if kp.rank() == 0 else None  # which one rank has read, or drawn
        kp.broadcast_object(settings)  # -> {'units': 8}
        ```

    Eager only. What the other ranks give is left alone.

    Args:
        value: what pickle can carry.
        root_rank: the rank whose object all get.

    Returns:
        The object.

    Raises:
        RuntimeError: `kp.init()` was not called.
        ValueError: on every rank, if `root_rank` is no rank, or its object cannot be pickled.

    Costs one all-gather, to which that rank alone has bytes to give.
    """
    communicator, message = world.current(), b""
    require_root("kp.broadcast_object", root_rank, communicator.size)
    if communicator.rank == root_rank:
        try:
            message = pickle.dumps((None, value))
        except Exception as error:  # of any kind: the object's own code is asked
            message = pickle.dumps((one_line(f"{type(error).__name__}: {error}", 200), None))
    sent = communicator.all_gather(tf.io.decode_raw(message, tf.uint8), "kp.broadcast_object")
    problem, received = pickle.loads(sent.numpy().tobytes())
    if problem is not None:
        raise ValueError(
            f"keras-par: kp.broadcast_object cannot pickle the object of rank {root_rank} ({problem}): give what it is "
            "made of."
        )
    return received


def require_root(what: str, root_rank: int, size: int) -> None:
    """Raises ValueError if there is no such rank."""
    if not 0 <= root_rank < size:
        raise ValueError(f"keras-par: {what} has root_rank={root_rank!r}, but there are {size} rank(s).")


def to_bytes(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype.size == 1:
        return tf.reshape(tf.cast(tensor, tf.uint8), [-1])
    return tf.reshape(tf.bitcast(tensor, tf.uint8), [-1])


def from_bytes(data: tf.Tensor, like: tf.TensorSpec) -> tf.Tensor:
    if like.dtype.size == 1:
        return tf.cast(tf.reshape(data, like.shape), like.dtype)
    return tf.bitcast(tf.reshape(data, [*like.shape, like.dtype.size]), like.dtype)


def own(part: tf.Tensor) -> tf.Tensor:
    """The part in memory of its own."""
    return tf.raw_ops.DeepCopy(x=part)
