"""Looks at the batch that a training or test function reads first, before the function reads it."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_par.keras_patches.inputs.batches import Batches
from keras_par.keras_patches.inputs.row_parts import counting_part, is_like
from keras_par.keras_patches.inputs.shards import KINDS

NONE = type(tf.type_spec_from_value(None))
FEEDABLE = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec, NONE)


def peek(iterator: Any, num_steps: int) -> tuple[Any, Any]:
    """A rank's rows of the first batch, None if there is none or it cannot be looked at, and an iterator of the same.

    Args:
        iterator: of batches, or of shards of them, for one call of a function that Keras makes.
        num_steps: batches that the function reads in one call.
    """
    if isinstance(iterator, Batches):
        return rows_of(iterator.shards), iterator
    if not isinstance(iterator, tf.data.Iterator):
        batches = list(itertools.islice(iterator, num_steps))
        return rows_of(batches), itertools.chain(batches, iterator)
    spec = iterator.element_spec
    if not all(isinstance(leaf, FEEDABLE) for leaf in tf.nest.flatten(spec)):
        return None, iterator
    batches = list(itertools.islice(iterator, num_steps))
    fed = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return rows_of(batches), as_iterator(fed)


def made_up(spec: Any, num_rows: int = 8) -> Any:
    """A batch of a type, of random numbers; None if the type leaves open more than the number of rows, or is no number.

    To look at a batch of data, and to give it back, takes some 30 ms, this takes less than one.
    """
    batch = spec.batch if isinstance(spec, KINDS) else spec
    random = np.random.default_rng(0)
    leaves: list[tf.Tensor | None] = []
    for leaf in keras.tree.flatten(batch):
        if leaf is None or isinstance(leaf, NONE):
            leaves.append(None)
            continue
        sizes: Any = leaf.shape.as_list() if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank else [None]
        if is_like(leaf, counting_part(batch)):
            sizes[0] = num_rows
        if None in sizes or not (leaf.dtype.is_floating or leaf.dtype.is_integer):
            return None
        drawn = random.normal(size=sizes) if leaf.dtype.is_floating else random.integers(0, 2, sizes)
        leaves.append(tf.constant(drawn.astype(leaf.dtype.as_numpy_dtype)))
    return keras.tree.pack_sequence_as(batch, leaves)


def rows_of(batches: list) -> Any:
    first = batches[0] if batches else None
    return first.batch if isinstance(first, KINDS) else first


def as_iterator(dataset: tf.data.Dataset) -> Iterator:
    """An iterator without tf.data's tuning thread, for which its deletion would wait."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return iter(dataset.with_options(options))
