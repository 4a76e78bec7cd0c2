"""Softmax cross-entropy over a divided vocabulary, without making the logits whole.

Of each row the ranks exchange the largest logit, then the sum of the powers and the label's logit: the losses are those
of `from_logits=True`, up to rounding.
"""

import math

import keras
import tensorflow as tf

from keras_par.sharding.collectives import differentiable, split, total
from keras_par.sharding.rules.dims import dim_of
from keras_par.sharding.rules.elementwise import elementwise
from keras_par.sharding.rules.reductions import largest
from keras_par.sharding.tensor import ShardedTensor, whole


def logits_of(output, from_logits: bool, axis: int) -> ShardedTensor | None:
    """The logits if they are divided along their last dim and only there."""
    if not from_logits:
        output = getattr(output, "_keras_logits", None)
    if not isinstance(output, ShardedTensor) or dim_of(axis, output.ndim) != output.ndim - 1:
        return None
    return output if output.axes[-1] is not None and not any(output.axes[:-1]) else None


def sparse_categorical_crossentropy(original, target, output, from_logits=False, axis=-1):
    """Costs two all-reduces, of one and of two numbers a row."""
    logits = logits_of(output, from_logits, axis)
    if logits is None:
        return original(whole(target), whole_with_logits(output), from_logits, axis)
    target = tf.cast(whole(target), tf.int64)
    if len(target.shape) == logits.ndim and target.shape[-1] == 1:
        target = tf.squeeze(target, -1)
    if not target.shape.is_compatible_with(logits.shape[:-1]):
        raise ValueError(
            f"keras-par: targets of shape {target.shape} do not fit logits of shape {logits.shape}, which want one for "
            "each row: give them that shape."
        )
    length = logits.local.shape[-1]
    own = target - length * logits.group(-1).rank
    is_own = (own >= 0) & (own < length)
    is_none = (target < 0) | (target >= logits.shape[-1])  # such labels have the loss NaN, as on a GPU

    def of_label(below):
        picked = pick(below, tf.where(is_own, own, 0))
        none = tf.where(is_none, tf.constant(math.nan, picked.dtype), tf.zeros([], picked.dtype))
        return tf.where(is_own, picked, none)

    return entropy(logits, of_label)


def pick(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Of each row the value at its place.

    The gradient of `tf.gather` is a sum over segments, of which each element of `values` is one and has a counter.
    """
    places = tf.cast(places, tf.int64)

    def spread(upstream: tf.Tensor) -> tf.Tensor:
        of_rows = tf.reshape(places, [-1])
        at = tf.stack([tf.range(tf.size(of_rows, tf.int64)), of_rows], 1)
        flat = tf.scatter_nd(at, tf.reshape(upstream, [-1]), [tf.size(of_rows, tf.int64), values.shape[-1]])
        return tf.reshape(flat, tf.shape(values))

    return differentiable(lambda x: tf.gather(x, places, axis=-1, batch_dims=len(places.shape)), spread, values)


def categorical_crossentropy(original, target, output, from_logits=False, axis=-1):
    """Costs two all-reduces, of one and of two numbers a row."""
    logits = logits_of(output, from_logits, axis)
    if logits is None:
        return original(whole(target), whole_with_logits(output), from_logits, axis)
    weights = target if isinstance(target, ShardedTensor) else keras.ops.convert_to_tensor(target)
    if isinstance(weights, ShardedTensor) and weights.axes != logits.axes:
        weights = weights.whole()
    if not weights.shape.is_compatible_with(logits.shape):
        return original(whole(target), whole_with_logits(output), from_logits, axis)
    if isinstance(weights, ShardedTensor):
        shares, sums = weights.local, keras.ops.sum(weights, axis=-1)
    else:
        shares = split(weights, weights.shape.rank - 1, logits.group(-1))
        sums = tf.reduce_sum(weights, -1)
    shares = tf.cast(shares, logits.dtype)
    return entropy(logits, lambda below: tf.reduce_sum(below * shares, -1), tf.cast(sums, logits.dtype))


def binary_crossentropy(original, target, output, from_logits=False):
    """Element by element, from the logits where Keras would find them behind a sigmoid. Costs nothing."""
    logits = getattr(output, "_keras_logits", None)
    if logits is not None and not from_logits:
        output, from_logits = logits, True
    return elementwise(lambda target, output: original(target, output, from_logits), target, output)


def entropy(logits: ShardedTensor, of_label, weight=None) -> tf.Tensor:
    """log of the sum of powers, times `weight`, minus the label's logit, of which `of_label` gives this rank's part.

    The gradient by logits is TensorFlow's, which takes `weight` for 1, as if all targets of a row summed to that.
    """
    below = logits.local - largest(logits, [logits.ndim - 1])
    parts = tf.stack([tf.reduce_sum(tf.exp(below), -1), of_label(below)])
    powers, picked = tf.unstack(total(parts, logits.group(-1)))
    log = tf.math.log(powers)
    losses = log - picked
    return losses if weight is None else losses + (weight - 1) * tf.stop_gradient(log)


def whole_with_logits(output):
    """The whole output, on which the whole logits are noted, as Keras looks for them."""
    full = whole(output)
    logits = getattr(output, "_keras_logits", None)
    if logits is not None and full is not output:
        full._keras_logits = whole(logits)
    return full
