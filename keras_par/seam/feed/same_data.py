"""Notices ranks that read different data where all should read the same, without reading anything twice."""

import logging
import warnings
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import Communicator
from keras_par.seam.feed.shards import none_for_optional

logger = logging.getLogger("keras_par")

REMEMBERED = 64  # digests kept: more batches than a pipeline reads ahead
BEGIN, EVERY = 4, 8  # the first batches are looked at, and then one in so many: other orders differ in all


class Digest:
    """A running digest of the batches a dataset gives, written down inside the pipeline.

    It is made of the first and the last row of every dense tensor of some batches, which tells other orders and
    other files apart at a small part of the cost of hashing all rows.
    """

    def __init__(self):
        with tf.device("cpu"):
            self._newest = tf.Variable(tf.zeros([REMEMBERED, 2], tf.int64), trainable=False)
            self._count = tf.Variable(tf.constant(0, tf.int64), trainable=False)

    def note(self, index: tf.Tensor, batch: Any) -> tf.Operation:
        """Adds the batch of number `index`, from 0 in each iteration, in a function that maps a dataset in order."""

        def add():
            running = tf.where(index == 0, tf.zeros([2], tf.int64), self._newest[(self._count - 1) % REMEMBERED])
            count = tf.where(index == 0, tf.constant(1, tf.int64), self._count + 1)
            written = self._newest[(count - 1) % REMEMBERED].assign(running * 31 + digest(batch))
            with tf.control_dependencies([written]):
                return tf.group(self._count.assign(count))

        return tf.cond((index < BEGIN) | (index % EVERY == 0), add, tf.no_op)

    def after(self, num_batches: int) -> list[int]:
        """How many of the newest iteration's batches were looked at, and the digests of all parts and of exact ones."""
        looked_at = min(num_batches, BEGIN) + len(range(EVERY, num_batches, EVERY))
        count = min(looked_at, int(self._count))
        return [count, *self._newest[(count - 1) % REMEMBERED].numpy().tolist()]


def digest(batch: Any) -> tf.Tensor:
    """Two numbers, made of the rows at both ends of all tensors in a batch, and of those that are no floats."""
    dense = [leaf for leaf in map(none_for_optional, tree.flatten(batch)) if isinstance(leaf, tf.Tensor)]
    kept = [leaf for leaf in dense if leaf.dtype != tf.variant]
    return tf.stack([hashed(kept), hashed([leaf for leaf in kept if not leaf.dtype.is_floating])])


def hashed(leaves: list[tf.Tensor]) -> tf.Tensor:
    """A number made of the first and the last row of tensors, 0 for none."""
    ends = [tf.io.serialize_tensor(rows) for leaf in leaves for rows in (leaf[:1], leaf[-1:])]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(ends), 2**62) if ends else tf.constant(0, tf.int64)


def warn_of_other_rows(communicator: Communicator, digests: list[list[int]]) -> None:
    """Says on rank 0 if a dataset has given ranks other rows, or the same ones with other noise.

    Where labels and other exact parts were the same in all batches looked at, and numbers were not, the rows were
    augmented by random numbers of each rank's own.

    Args:
        communicator: of all ranks.
        digests: each rank's `Digest.after`.
    """
    exact = [[count, part] for count, _, part in digests]
    if all(each == exact[0] for each in exact) and exact[0][1]:
        if any(each != digests[0] for each in digests) and communicator.rank == 0:
            logger.warning(
                "keras-par: the dataset has given the ranks the same rows, as their labels tell, with other numbers in "
                "them: its random augmentation is not that of one process; seed its generators alike on all ranks"
            )
        return
    warn_if_unequal(communicator, digests, "the dataset has given other rows")


def warn_if_unequal(communicator: Communicator, values: list, where: str) -> None:
    """Says on rank 0 which ranks' values, in rank order, are not rank 0's; `where` names the data."""
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    if others and communicator.rank == 0:
        ranks = ", ".join(map(str, others))
        warnings.warn(
            f"keras-par: {where} on rank{'s' if len(others) > 1 else ''} {ranks} than on rank 0, so that rows are used "
            "twice or never: read the same files in the same order on every rank (call kp.init() and then "
            "keras.utils.set_random_seed with the same number, before the data is shuffled or split), or give each "
            "rank its own rows by kp.data.shard or DataParallel(auto_shard_dataset=False).",
            stacklevel=2,
        )
