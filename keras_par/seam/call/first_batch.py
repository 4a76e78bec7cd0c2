"""Looks at the batch that a training or test function reads first, before the function is called with it."""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_par.seam.feed.shards import KINDS

FEEDABLE = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec, type(tf.type_spec_from_value(None)))


def peek(iterator: Any, num_steps: int) -> tuple[Any, Any]:
    """A rank's rows of the first batch, None if there is none or it cannot be looked at, and an iterator of the same.

    Args:
        iterator: of batches, or of shards of them, for one call of a function that Keras makes.
        num_steps: batches that the function reads in one call.
    """
    if not isinstance(iterator, tf.data.Iterator):
        batches = list(itertools.islice(iterator, num_steps))
        return rows_of(batches), itertools.chain(batches, iterator)
    spec = iterator.element_spec
    if not all(isinstance(leaf, FEEDABLE) for leaf in tf.nest.flatten(spec)):
        return None, iterator
    batches = list(itertools.islice(iterator, num_steps))
    fed = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return rows_of(batches), as_iterator(fed)


def rows_of(batches: list) -> Any:
    first = batches[0] if batches else None
    return first.batch if isinstance(first, KINDS) else first


def as_iterator(dataset: tf.data.Dataset) -> Iterator:
    """An iterator without tf.data's tuning thread, for which its deletion would wait."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return iter(dataset.with_options(options))
