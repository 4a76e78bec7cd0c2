"""Gives each rank its own strided share of a tf.data.Dataset, of equal length on all ranks."""

from typing import Literal

import tensorflow as tf

from keras_par.comm import world
from keras_par.plan.rows import num_wrapped


def shard(
    dataset: tf.data.Dataset,
    num_shards: int | None = None,
    shard_id: int | None = None,
    remainder: Literal["wrap", "drop"] = "wrap",
) -> tf.data.Dataset:
    """Elements shard_id, shard_id + num_shards, ... of `dataset`; `fit` takes the result as this rank's own.

    Batch it afterwards with the batch size of one rank. Shuffle before it only with a seed that all ranks share.

    Args:
        dataset: finite of known length, or infinite. Not batched, unless whole batches are to be dealt out.
        num_shards: number of shards, by default the number of ranks.
        shard_id: which shard, by default this rank's number.
        remainder: what happens when `num_shards` does not divide the length n. "wrap" gives every shard
            ceil(n / num_shards) elements, a short one going on from the first element; "drop" gives every shard
            floor(n / num_shards).

    Returns:
        A dataset that is marked by AutoShardPolicy.OFF, TensorFlow's own sign for "sharded already", which
        survives batching and mapping.

    Raises:
        ValueError: an argument is out of range, or the length is not known.
    """
    num_shards = world.current().size if num_shards is None else num_shards
    shard_id = world.current().rank if shard_id is None else shard_id
    check(dataset, num_shards, shard_id, remainder)
    length = int(dataset.cardinality())
    share = dataset.shard(num_shards, shard_id)
    if length > 0 and remainder == "drop":
        share = share.take(length // num_shards)
    elif length > 0:
        last = shard_id + (num_wrapped(length, num_shards) - 1) * num_shards
        if last >= length:
            share = share.concatenate(dataset.skip(last % length).take(1))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return share.with_options(options)


def check(dataset, num_shards: int, shard_id: int, remainder: str) -> None:
    """Raises ValueError for arguments of `shard` that cannot be."""
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"keras-par: data.shard takes a tf.data.Dataset, not a {type(dataset).__name__}: "
            "use tf.data.Dataset.from_tensor_slices for arrays."
        )
    if num_shards < 1 or not 0 <= shard_id < num_shards:
        raise ValueError(
            f"keras-par: data.shard(num_shards={num_shards}, shard_id={shard_id}) needs 0 <= shard_id < num_shards."
        )
    if remainder not in ("wrap", "drop"):
        raise ValueError(f"keras-par: data.shard(remainder={remainder!r}) is unknown, use 'wrap' or 'drop'.")
    if int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY:
        raise ValueError(
            "keras-par: data.shard must know how long the dataset is, to give all ranks as many elements: "
            "add .apply(tf.data.experimental.assert_cardinality(n)) before it."
        )
