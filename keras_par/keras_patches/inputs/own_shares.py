"""Says which elements of an input a rank's share has, and remembers what is a share, which `fit` does not cut again."""

import logging
import weakref
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
import tensorflow as tf

from keras_par.comm import world
from keras_par.plan.options import Remainder
from keras_par.plan.rows import shard_size, stride

T = TypeVar("T")
logger = logging.getLogger("keras_par")

_shares: weakref.WeakSet = weakref.WeakSet()


class Sharding(NamedTuple):
    """Shard `shard_id` of `num_shards`: elements shard_id, shard_id + num_shards, ... of data, see `kp.data.shard`."""

    num_shards: int
    shard_id: int
    remainder: Remainder

    @property
    def complaint(self) -> str | None:
        """What is wrong with it, as the end of a sentence that begins with a function's name, or None."""
        if self.num_shards < 1 or not 0 <= self.shard_id < self.num_shards:
            return f"(num_shards={self.num_shards}, shard_id={self.shard_id}) needs 0 <= shard_id < num_shards."
        if self.remainder not in get_args(Remainder):
            return f"(remainder={self.remainder!r}) is unknown, use 'exact', 'wrap' or 'drop'."
        return None

    def size(self, length: int) -> int:
        """How many of `length` elements the shard has."""
        return shard_size(length, self.num_shards, self.shard_id, self.remainder)

    def has(self, number: Any) -> Any:
        """True for an element of the shard."""
        return number % self.num_shards == self.shard_id

    def numbers(self, length: int) -> np.ndarray:
        """Which of `length` elements the shard has, in order."""
        return stride(np.arange(length), *self)

    def say_remainder(self, length: int, where: str = "data.shard", what: str = "elements") -> None:
        """Logs on rank 0 how many of `length` elements, called `what`, `where` reads twice or leaves out."""
        size = self.size(length)
        surplus = size * self.num_shards - length
        if self.remainder == "exact" or not surplus or (world.is_started() and world.current().rank != 0):
            return
        logger.warning(
            f"keras-par: {where}: {abs(surplus)} of {length} {what} are {'read twice' if surplus > 0 else 'left out'}, "
            f"so that each of {self.num_shards} shards has {size} (remainder={self.remainder!r})"
        )

    def refuse_unknown_length(self) -> None:
        raise ValueError(
            f"keras-par: data.shard(remainder={self.remainder!r}) must know how long the data is, to give all ranks as "
            "many elements: use remainder='exact', or for a tf.data.Dataset add "
            ".apply(tf.data.experimental.assert_cardinality(n)) before it."
        )


def mark(share: T) -> T:
    """Notes that `share` is this rank's own.

    A tf.data.Dataset carries the note along through batching and mapping, as AutoShardPolicy.OFF, TensorFlow's own
    sign for "sharded already"; a PyDataset, a generator or a DataLoader is remembered itself.
    """
    if isinstance(share, tf.data.Dataset):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return share.with_options(options)
    _shares.add(share)
    return share


def is_marked(given: Any) -> bool:
    """True if `given` is one rank's share."""
    if isinstance(given, tf.data.Dataset):
        policy = given.options().experimental_distribute.auto_shard_policy
        return policy == tf.data.experimental.AutoShardPolicy.OFF
    try:
        return given in _shares
    except TypeError:  # arrays and nests of them can be neither marked nor hashed
        return False
