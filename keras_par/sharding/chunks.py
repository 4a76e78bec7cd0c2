"""Tensors as collectives take them: what goes to each rank, or comes from it, lies along the first dim.

Pieces of equal length are moved as wholes, which is as fast as a copy; of others the dim is moved to the front, number
by number.
"""

from typing import Any

import tensorflow as tf


def to_scatter(tensor: tf.Tensor, dim: int, num_ranks: int) -> tf.Tensor:
    """A tensor whose dim 0 a reduce-scatter divides over the ranks as they divide `dim` of this one."""
    length = tensor.shape[dim]
    if dim == 0 or length % num_ranks:
        return to_front(tensor, dim)
    shape = sizes_of(tensor)
    cut = tf.reshape(tensor, [*shape[:dim], num_ranks, length // num_ranks, *shape[dim + 1 :]])
    return to_front(cut, dim)


def from_scatter(part: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """This rank's shard along `dim`, of which the whole has a `length`, out of its part of what was scattered."""
    return from_front(part, dim) if dim == 0 or length % num_ranks else tf.squeeze(part, 0)


def to_gather(shard: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """A tensor whose kin of all ranks an all-gather joins along dim 0, so that `from_gather` finds the whole."""
    return to_front(shard, dim) if dim == 0 or length % num_ranks else tf.expand_dims(shard, 0)


def from_gather(rows: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """The whole, of a `length` along `dim`, out of what was gathered."""
    if dim == 0 or length % num_ranks:
        return from_front(rows, dim)
    joined = from_front(rows, dim)
    shape = sizes_of(joined)
    return tf.reshape(joined, [*shape[:dim], length, *shape[dim + 2 :]])


def to_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """`tensor` with `dim` before all others."""
    rest = [other for other in range(tensor.shape.rank) if other != dim]
    return tensor if dim == 0 else tf.transpose(tensor, [dim, *rest])


def from_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """What `to_front` made, as it was."""
    order = [*range(1, dim + 1), 0, *range(dim + 1, tensor.shape.rank)]
    return tensor if dim == 0 else tf.transpose(tensor, order)


def sizes_of(tensor: tf.Tensor) -> list:
    """Of each dim the size, as a number where it is known."""
    sizes = tensor.shape.as_list()
    unknown: Any = tf.shape(tensor) if None in sizes else None
    return [unknown[place] if size is None else size for place, size in enumerate(sizes)]
