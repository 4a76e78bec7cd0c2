"""Collectives for losses that look across the batch: differentiable, and exact whatever rows each rank has.

They are with the ranks that have other rows, inside of a training step or outside.

The gradient of a result goes to where its parts come from, on all ranks: each part gets the sum of what all ranks find
for it. A step weights each rank's loss by its share of the rows. So both ways to write a loss across the batch are
exact: each rank the mean over its own rows, compared with those of all; or each rank the whole.

A rank without rows of a batch has one as a stand-in, which these functions leave out. With one rank, and before
`kp.init()`, each returns its argument.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from keras_par.comm import differentiable, world
from keras_par.comm.broadcast import require_root
from keras_par.comm.communicator import Communicator, ReduceOp
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import is_in_loop, numbered

__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "row_offset"]

OPERATIONS = ("sum", "mean", "min", "max")


def all_gather(x: Any) -> tf.Tensor:
    """The rows of all ranks, in the order of the global batch.

    Example:
        ```python
        kp.init()
        x = tf.fill([kp.rank() + 1, 2], float(kp.rank()))  # one row on rank 0, two rows on rank 1
        kp.ops.all_gather(x).numpy().tolist()  # -> [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        ```

    Args:
        x: a tensor of which this rank has some rows, or some for each row of the batch; other dims are equal on all
            ranks.

    Returns:
        A tensor whose dim 0 is as long as all ranks' together, equal on all ranks.

    Costs two all-gathers forward, and an all-reduce of the result and an all-gather of a number backward.
    """
    tensor = tf.convert_to_tensor(x)
    group, name = place("all_gather")
    if group is None:
        return tensor
    return differentiable.gather(with_rows(tensor), group, name)


def row_offset(x: Any) -> tf.Tensor:
    """The number in `all_gather(x)` of this rank's first row of `x`.

    Example:
        ```python
        kp.init()
        x = tf.ones([4 - kp.rank(), 2])  # four rows on rank 0, three rows on rank 1
        own = kp.ops.row_offset(x) + tf.range(tf.shape(x, tf.int64)[0])  # this rank's rows in all_gather(x)
        own.numpy().tolist()  # -> [0, 1, 2, 3] on rank 0, [4, 5, 6] on rank 1
        ```

    Args:
        x: as `all_gather` has it.

    Returns:
        A scalar of int64, 0 with one rank.

    Costs one all-gather of a number.
    """
    tensor = tf.convert_to_tensor(x)
    group, name = place("row_offset")
    if group is None:
        return tf.zeros([], tf.int64)
    return differentiable.first_row(with_rows(tensor), group, name)


def all_reduce(x: Any, op: ReduceOp = "sum") -> tf.Tensor:
    """The ranks' values reduced element by element.

    Example:
        ```python
        kp.init()
        x = tf.constant([1.0, 2.0]) * (kp.rank() + 1)
        kp.ops.all_reduce(x).numpy().tolist()  # -> [3.0, 6.0]
        kp.ops.all_reduce(x, "mean").numpy().tolist()  # -> [1.5, 3.0]
        kp.ops.all_reduce(x, "max").numpy().tolist()  # -> [2.0, 4.0]
        ```

    Args:
        x: a tensor of the same shape on all ranks.
        op: "sum", "min", "max", or "mean", which inside of a step counts each rank with its rows, so that the mean of
            the ranks' means is that of the batch.

    Returns:
        A tensor of the shape and dtype of `x`, equal on all ranks.

    Raises:
        ValueError: `op` is unknown.

    Costs one all-reduce forward and one backward, "min" and "max" two backward.
    """
    if op not in OPERATIONS:
        raise ValueError(f"keras-par: op={op!r} is unknown, use 'sum', 'mean', 'min' or 'max'.")
    tensor = tf.convert_to_tensor(x)
    group, name = place("all_reduce")
    if group is None:
        return tensor
    step = steps.current()
    if op in ("min", "max"):
        return differentiable.extreme(counted(step, tensor, op), group, op, name)
    if op == "mean":
        weight = tf.cast(1.0 / group.size, tensor.dtype) if step is None else step.share(tensor.dtype)
        tensor = tensor * weight if step is None else step.times(tensor, weight)
    elif step is not None and step.thin:
        tensor = tf.where(step.local > 0, tensor, tf.zeros_like(tensor))
    return differentiable.total([tensor], group, name)[0]


def all_to_all(x: Any) -> tf.Tensor:
    """Sends the i-th of as many equal parts of dim 0 as there are ranks to rank i, and joins what arrives.

    Example:
        ```python
        kp.init()
        x = tf.range(4) + 10 * kp.rank()
        kp.ops.all_to_all(x).numpy().tolist()  # -> [0, 1, 10, 11] on rank 0, [2, 3, 12, 13] on rank 1
        ```

    Args:
        x: a tensor of the same shape on all ranks.

    Returns:
        A tensor of the shape and dtype of `x`, the parts in the order of the ranks that they come from.

    Raises:
        ValueError: the number of ranks does not divide dim 0.

    Costs one all-to-all each way.
    """
    tensor = tf.convert_to_tensor(x)
    group, name = place("all_to_all")
    if group is None:
        return tensor
    length = tensor.shape[0]
    if length is not None and length % group.size:
        raise ValueError(
            f"keras-par: kp.ops.all_to_all cannot cut {length} rows into {group.size} equal parts: give it a multiple."
        )
    return differentiable.all_to_all(tensor, group, name)


def broadcast(x: Any, root_rank: int = 0) -> tf.Tensor:
    """The tensor of rank `root_rank`, on all ranks.

    Example:
        ```python
        kp.init()
        x = tf.constant([1.0, 2.0]) * kp.rank()
        kp.ops.broadcast(x, root_rank=1).numpy().tolist()  # -> [1.0, 2.0]
        ```

    Args:
        x: a tensor of the same shape on all ranks.
        root_rank: among the ranks that have other rows, which are all in data parallel.

    Returns:
        A tensor of the shape and dtype of `x`, equal on all ranks.

    Raises:
        ValueError: there is no such rank.

    Costs one broadcast forward and one all-reduce backward.
    """
    tensor = tf.convert_to_tensor(x)
    group, name = place("broadcast")
    size = 1 if group is None else group.size
    require_root("kp.ops.broadcast", root_rank, size)
    return tensor if group is None else differentiable.broadcast(tensor, group, root_rank, name)


def place(what: str) -> tuple[Communicator | None, Callable[[str], str]]:
    """The ranks that a collective is with, None if there is one only, and what gives its names.

    Raises:
        ValueError: XLA compiles the step, or the graph being traced is in a loop, where ranks cannot talk.
    """
    step = steps.current()
    if step is None and not world.is_started():
        return None, numbered
    group = world.current() if step is None else step.communicator
    if group.size == 1 and (step is None or step.probed is None):  # a probe asks if it needs others
        return None, numbered
    if is_in_loop():
        raise ValueError(
            f"keras-par: kp.ops.{what} is called within a loop of a graph, where ranks cannot talk: call it before or "
            "after the loop."
        )
    if step is not None:
        step.require_plain(f"kp.ops.{what}")
    return group, lambda kind: numbered(f"ops.{kind}")


def with_rows(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, without rows where this rank's are a stand-in."""
    step = steps.current()
    if step is None or not step.thin:
        return tensor
    return tensor[: tf.where(step.local > 0, tf.shape(tensor, out_type=tf.int64)[0], 0)]


def counted(step: steps.Step | None, tensor: tf.Tensor, op: str) -> tf.Tensor:
    """The tensor, or where this rank has no rows what is never the least, or the most."""
    if step is None or not step.thin:
        return tensor
    stand_in = tensor.dtype.max if op == "min" else tensor.dtype.min
    return tf.where(step.local > 0, tensor, tf.fill(tf.shape(tensor), tf.cast(stand_in, tensor.dtype)))
