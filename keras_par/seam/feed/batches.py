"""Batches that a rank has read already, with the type of the data they are from, so that a step is traced for all."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf


class Batches(Iterator):
    """An iterator of shards in a list.

    Args:
        shards: each of one of the kinds of shards.
        element_spec: of the data set, which may leave sizes open that each shard has.
    """

    def __init__(self, shards: list, element_spec: Any):
        self.shards, self.element_spec = shards, element_spec
        self._rest = iter(shards)

    def __next__(self):
        return next(self._rest)

    def type_of(self, shard: Any) -> Any:
        """The type that the shard has in common with all others of its kind."""
        return type(shard)(self.element_spec.batch, *map(tf.type_spec_from_value, shard[1:]))
