"""Remembers which inputs are one rank's own share, so that `fit` does not cut them again."""

import weakref
from typing import Any, TypeVar

import tensorflow as tf

T = TypeVar("T")

_shares: weakref.WeakSet = weakref.WeakSet()


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
