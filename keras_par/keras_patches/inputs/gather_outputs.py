"""Puts the rows that ranks have predicted together again, in rank order: dense, ragged and sparse ones."""

from typing import Any

import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.keras_patches.inputs.components import num_rows
from keras_par.keras_patches.inputs.shards import take

KINDS = (tf.RaggedTensor, tf.SparseTensor)


def as_tensor(value: Any) -> Any:
    """`value` as a tensor; ragged and sparse ones stay what they are."""
    return value if isinstance(value, KINDS) else tf.convert_to_tensor(value)


def gather_rows(communicator: Communicator, output: Any, name: str, count: Any) -> Any:
    """The first `count` rows of a tensor on each rank (None: all), in rank order.

    Costs one all-gather, of a ragged tensor one more for each ragged dim, of a sparse one two more.

    Args:
        communicator: the ranks that have other rows.
        output: a dense, ragged or sparse tensor, whose dim 0 is rows.
        name: the collective's.
        count: rows that are no stand-ins.
    """
    if isinstance(output, tf.RaggedTensor):
        rows = output[:count]
        lengths = [
            communicator.all_gather(each, f"{name}.lengths{dim}") for dim, each in enumerate(rows.nested_row_lengths())
        ]
        values = communicator.all_gather(rows.flat_values, name)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths)
    if isinstance(output, tf.SparseTensor):
        return gather_sparse(communicator, output if count is None else take(output, 0, count), name)
    return communicator.all_gather(output[:count], name)


def gather_sparse(communicator: Communicator, rows: tf.SparseTensor, name: str) -> tf.SparseTensor:
    """The ranks' sparse rows below each other."""
    counts = communicator.all_gather(tf.reshape(num_rows(rows), [1]), f"{name}.rows")
    before = tf.reduce_sum(counts[: communicator.rank])
    shift = tf.one_hot(0, tf.shape(rows.indices)[1], before, tf.constant(0, tf.int64), dtype=tf.int64)
    indices = communicator.all_gather(rows.indices + shift, f"{name}.indices")
    values = communicator.all_gather(rows.values, name)
    return tf.SparseTensor(indices, values, tf.concat([[tf.reduce_sum(counts)], rows.dense_shape[1:]], 0))


def joined(batches: list) -> Any:
    """Rows of several batches below each other."""
    return tf.sparse.concat(0, batches) if isinstance(batches[0], tf.SparseTensor) else tf.concat(batches, 0)
