"""Notices ranks that read different data where all should read the same, without reading anything twice."""

import logging
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.job import rank_heartbeat
from keras_par.keras_patches.inputs.shards import none_for_optional

logger = logging.getLogger("keras_par")

REMEMBERED = 64  # digests kept: more batches than a pipeline reads ahead
FRAME = "=" * 100
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
            self._first = tf.Variable(tf.constant(0, tf.int64), trainable=False)  # exact components of the first batch
            self._tells = tf.Variable(tf.constant(0, tf.int64), trainable=False)  # 1 if another batch's are others

    def note(self, index: tf.Tensor, batch: Any) -> tf.Operation:
        """Adds the batch of number `index`, from 0 in each iteration, in a function that maps a dataset in order."""

        def add():
            running = tf.where(index == 0, tf.zeros([2], tf.int64), self._newest[(self._count - 1) % REMEMBERED])
            count = tf.where(index == 0, tf.constant(1, tf.int64), self._count + 1)
            found = digest(batch)
            first = tf.where(index == 0, found[1], self._first)
            tells = tf.maximum(tf.where(index == 0, tf.constant(0, tf.int64), self._tells), int_of(found[1] != first))
            written = self._newest[(count - 1) % REMEMBERED].assign(running * 31 + found)
            with tf.control_dependencies([written]):
                return tf.group(self._count.assign(count), self._first.assign(first), self._tells.assign(tells))

        return tf.cond((index < BEGIN) | (index % EVERY == 0), add, tf.no_op)

    def after(self, num_batches: int) -> list[int]:
        """How many of the newest iteration's batches were looked at, digests, and if exact ones tell batches apart.

        The digests are those of all components and of exact ones.
        """
        looked_at = min(num_batches, BEGIN) + len(range(EVERY, num_batches, EVERY))
        count = min(looked_at, int(self._count))
        return [count, *self._newest[(count - 1) % REMEMBERED].numpy().tolist(), int(self._tells)]


def int_of(flag: tf.Tensor) -> tf.Tensor:
    return tf.cast(flag, tf.int64)


def digest(batch: Any) -> tf.Tensor:
    """Two numbers, made of the rows at both ends of all tensors in a batch, and of those that are no floats."""
    dense = [leaf for leaf in map(none_for_optional, tree.flatten(batch)) if isinstance(leaf, tf.Tensor)]
    kept = [leaf for leaf in dense if leaf.dtype != tf.variant]
    return tf.stack([hashed(kept), hashed([leaf for leaf in kept if not leaf.dtype.is_floating])])


def hashed(leaves: list[tf.Tensor]) -> tf.Tensor:
    """A number made of the first and the last row of tensors, 0 for none."""
    ends = [tf.io.serialize_tensor(rows) for leaf in leaves for rows in ends_of(leaf)]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(ends), 2**62) if ends else tf.constant(0, tf.int64)


def ends_of(leaf: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return (leaf,) if leaf.shape.rank == 0 else (leaf[:1], leaf[-1:])


def difference(digests: list[list[int]], is_end: bool) -> str | None:
    """What is said of a dataset that has given ranks other rows, or the same ones with other numbers in them.

    Where labels and other exact components tell batches apart, were the same in all batches looked at, and numbers were
    not, the rows are the same. Where one batch does not tell, later ones may.

    Args:
        digests: each rank's `Digest.after`.
        is_end: that an epoch has been read.
    """
    if all(each == digests[0] for each in digests):
        return None
    exact = [[count, found] for count, _, found, _ in digests]
    if all(each == exact[0] for each in exact) and exact[0][1]:
        if all(tells for *_, tells in digests):
            return SAME_ROWS
        if not is_end:
            return None
    return other_rows(digests, "the dataset has given other rows")


SAME_ROWS = (
    "keras-par: the dataset has given the ranks the same rows, as their labels tell, with other numbers in them, so "
    "that the training is not that of one process: if it draws random numbers, seed them alike on all ranks"
)


def other_rows(values: list, where: str) -> str | None:
    """Which ranks' values, in rank order, are not rank 0's, None if all are; `where` names the data."""
    others = [rank for rank, value in enumerate(values) if value != values[0]]
    if not others:
        return None
    ranks = ", ".join(map(str, others))
    return (
        f"keras-par: {where} on rank{'s' if len(others) > 1 else ''} {ranks} than on rank 0, so that rows are used "
        "twice or never"
    )


def tell(said: str, advice: str) -> None:
    """Shows what was found as a block of its own, and lets the launcher and the report of the job say it, too."""
    shares = (
        "or give each rank its own rows by kp.data.shard; if it has its own, say DataParallel(auto_shard_dataset=False)"
    )
    how = "" if said == SAME_ROWS else f": {advice}, {shares}"
    logger.error("%s\n%s%s.\n%s", FRAME, said, how, FRAME)
    rank_heartbeat.current().tell("warning", text=f"{said}{how}".removeprefix("keras-par: "))
