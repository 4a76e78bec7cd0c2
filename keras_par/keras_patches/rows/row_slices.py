"""Tells how the ranks' gradients of looked-up rows make one process's, by where the indices come from.

Optimizers that square gradients do so slice by slice, so that it matters whether an index is there once or for each
rank. An index that a rank's rows bring stands beside those of other ranks. One that all ranks look up, as positions
are, one process has once.
"""

import enum
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

from keras_par.comm.reducer import Gradient
from keras_par.keras_patches.rows.row_dims import ALIKE, Rows, is_symbolic
from keras_par.sharding.step import Step

DISTINCT = ("Range", "Unique", "UniqueV2")  # operations whose first output has no number twice
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
PASSING = {"Reshape": 0, "Identity": 0, "Cast": 0, "ExpandDims": 0, "Squeeze": 0, "SelectV2": 2}  # by which input


class Lookup(enum.Enum):
    """What the slices of several ranks are to each other."""

    OF_ROWS = "one rank's stand behind another's"
    ALIKE = "all ranks have the same indices"
    DISTINCT = "no rank has an index twice, and neither has one process"


def lookup_of(step: Step, gradient: Gradient) -> Lookup | None:
    """What is known of a gradient's slices, `OF_ROWS` where nothing is, as in eager steps; None if it has none."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None
    indices = gradient.indices
    if step.rows is None or not is_symbolic(indices):
        return Lookup.OF_ROWS
    if indices.name in step.lookups:
        return step.lookups[indices.name]
    if indices.op.type in CALLS:
        step.say(
            "a tf.function that the step calls looks up rows, and hides which of them one process has once for all "
            "ranks, as those of positions: an optimizer that squares gradients has them once for each rank"
        )
    known = step.rows.of(indices)
    if known is ALIKE:
        return Lookup.ALIKE
    return Lookup.DISTINCT if not isinstance(known, Rows) and are_distinct(indices) else Lookup.OF_ROWS


def are_distinct(indices: tf.Tensor) -> bool:
    """True if the operation that the indices come from gives no number twice."""
    while indices.op.type in PASSING:
        indices = indices.op.inputs[PASSING[indices.op.type]]
    return indices.op.type in DISTINCT and indices.value_index == 0


def pieces(gradient: Gradient) -> list:
    """The gradients that were joined to one where a table was looked up several times."""
    if not isinstance(gradient, tf.IndexedSlices) or not is_symbolic(gradient.indices):
        return [gradient]
    if gradient.indices.op.type != "ConcatV2":
        return [gradient]
    indices = gradient.indices.op.inputs[:-1]
    values = tf.split(gradient.values, [tf.size(each) for each in indices])
    shape = gradient.dense_shape
    return [p for v, i in zip(values, indices, strict=True) for p in pieces(tf.IndexedSlices(v, i, shape))]


def joined(parts: Sequence[Gradient]) -> Gradient:
    """The opposite of `pieces`."""
    if len(parts) == 1:
        return parts[0]
    values, indices = (tf.concat([getattr(part, name) for part in parts], 0) for name in ("values", "indices"))
    return tf.IndexedSlices(values, indices, parts[0].dense_shape)  # type: ignore[union-attr]


def summed(step: Step, gradients: Iterable[Gradient], add: Callable[[list], list]) -> list[Gradient]:
    """The gradients of all ranks, of which slices have each index as often as in one process.

    Args:
        step: under way.
        gradients: this rank's.
        add: adds tensors up over the ranks, and puts one rank's slices behind another's.
    """
    parts = [pieces(gradient) for gradient in gradients]
    own = [part for each in parts for part in each]
    lookups = [lookup_of(step, part) for part in own]
    totals = add([part.values if how is Lookup.ALIKE else part for part, how in zip(own, lookups, strict=True)])
    for place, how in enumerate(lookups):
        if how is Lookup.ALIKE:
            totals[place] = tf.IndexedSlices(totals[place], own[place].indices, own[place].dense_shape)
        elif how is Lookup.DISTINCT:
            totals[place] = merged(totals[place])
    left = iter(totals)
    return [joined([next(left) for _ in each]) for each in parts]


def merged(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """The slices with each index once, in the order in which these come up."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def note(step: Step, parts: list[list[Gradient]], lookups: list[list[Lookup | None]]) -> None:
    """Says what lookups the pieces of gradients are of that a compiled function gave."""
    for each, hows in zip(parts, lookups, strict=True):
        found = {p.indices.name: how for p, how in zip(each, hows, strict=True) if isinstance(p, tf.IndexedSlices)}
        step.lookups |= found
