"""Batches that a rank has read already, with the type of the data they are from, so that a step is traced for all."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.seam.feed.shards import Part, ThinShard, zeros


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
        """The type that the shard has in common with all others of its kind, stand-ins of one row among them."""
        batch = self.element_spec.batch
        if isinstance(self.element_spec, Part) and isinstance(shard, ThinShard):
            batch = tree.map_structure(common, batch, zeros(self.element_spec).batch)
        return type(shard)(batch, *map(tf.type_spec_from_value, shard[1:]))


def common(spec: tf.TypeSpec, stand_in: Any) -> tf.TypeSpec:
    return spec if stand_in is None else spec.most_specific_common_supertype([tf.type_spec_from_value(stand_in)])
