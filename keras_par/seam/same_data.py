"""Notices ranks that read different data where all should read the same, without reading anything twice."""

import warnings

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.seam.shards import none_for_optional

REMEMBERED = 64  # batches whose digests are kept: more than a pipeline reads ahead


class Digest:
    """A running digest of the batches a dataset has given, written down inside the pipeline.

    It is made of the first and the last row of every dense tensor of a batch, which tells other orders and other
    files apart at a small part of the cost of hashing all rows.

    Args:
        dataset: batches that all ranks read alike.
    """

    def __init__(self, dataset: tf.data.Dataset):
        with tf.device("cpu"):
            self._newest = tf.Variable(tf.zeros([REMEMBERED], tf.int64), trainable=False)
            self._count = tf.Variable(tf.constant(0, tf.int64), trainable=False)

        def note(state, element):
            index, running = state
            running = running * 31 + digest(element)
            written = [self._newest[index % REMEMBERED].assign(running), self._count.assign(index + 1)]
            with tf.control_dependencies(written):
                following = (index + 1, tf.identity(running))
            return following, element

        start = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))
        self.dataset = dataset.scan(start, note)

    def after(self, num_batches: int) -> list[int]:
        """How many batches of the newest iteration count, at most `num_batches`, and the digest after them."""
        count = min(num_batches, int(self._count))
        return [count, int(self._newest[(count - 1) % REMEMBERED])]


def digest(element) -> tf.Tensor:
    """A number made of the rows at both ends of the tensors in a batch."""
    dense = [leaf for leaf in map(none_for_optional, tree.flatten(element)) if isinstance(leaf, tf.Tensor)]
    ends = [
        tf.io.serialize_tensor(rows) for leaf in dense if leaf.dtype != tf.variant for rows in (leaf[:1], leaf[-1:])
    ]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(ends), 2**62) if ends else tf.constant(0, tf.int64)


def warn_if_unequal(communicator: Communicator, values: list, where: str) -> None:
    """Says on rank 0 which ranks' values, in rank order, are not rank 0's; `where` names the data."""
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    if others and communicator.rank == 0:
        ranks = ", ".join(map(str, others))
        warnings.warn(
            f"keras-par: {where} on rank{'s' if len(others) > 1 else ''} {ranks} than on rank 0, so that rows are used "
            "twice or never: read the same files in the same order on every rank (the same seed for shuffling, "
            "datasets built after kp.init()), or give each rank its own rows by kp.data.shard or "
            "DataParallel(auto_shard_dataset=False).",
            stacklevel=2,
        )
