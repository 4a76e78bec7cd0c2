"""Batches that a rank has read already, with one type for all of their data set, by which a step is traced once."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras import tree

from keras_par.keras_patches.inputs.shards import Part, ThinShard, zeros


class Batches(Iterator):
    """An iterator of shards in a list.

    Args:
        shards: of one of the kinds of shards.
        type_: that of all shards of their data set, which may leave sizes open that each shard has.
    """

    def __init__(self, shards: list, type_: Any):
        self.shards, self.type = shards, type_
        self._rest = iter(shards)

    def __next__(self):
        return next(self._rest)


def common_type(element_spec: Any, shard: Any) -> Any:
    """What a shard's type has in common with those of all others of a data set, stand-ins of one row among them.

    Args:
        element_spec: of the data set.
        shard: of the data set's kind, or a ThinShard made of a Part.
    """
    batch = element_spec.batch
    if isinstance(element_spec, Part) and isinstance(shard, ThinShard):
        batch = tree.map_structure(with_stand_in, batch, zeros(element_spec).batch)
    return type(shard)(batch, *map(tf.type_spec_from_value, shard[1:]))


def with_stand_in(spec: tf.TypeSpec, row: Any) -> tf.TypeSpec:
    return spec if row is None else spec.most_specific_common_supertype([tf.type_spec_from_value(row)])
