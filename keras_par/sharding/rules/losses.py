"""Softmax cross-entropy over a divided vocabulary, without making the logits whole.

Of each row the ranks exchange the largest logit, then the sum of the powers and the label's logit: the losses are those
of `from_logits=True`, up to rounding.
"""

import math

import keras
import tensorflow as tf

from keras_par.sharding.collectives import differentiable
from keras_par.sharding.compute import compute, dim_of
from keras_par.sharding.rules.elementwise import elementwise
from keras_par.sharding.rules.reductions import largest
from keras_par.sharding.tensor import whole


def sparse_categorical_crossentropy(original, target, output, from_logits=False, axis=-1):
    """Costs two all-reduces, of one and of two numbers a row."""
    classes, target = dim_of(axis, len(output.shape)), keras.ops.convert_to_tensor(target)
    has_dim = len(target.shape) == len(output.shape) and target.shape[classes] == 1
    labels = [None if dim == classes else dim for dim in range(len(output.shape)) if has_dim or dim != classes]

    def divided(target, logits):
        target = keras.ops.cast(target, "int64")
        begin, size = logits.begin(classes), logits.shape[classes]

        def of_label(below, target):
            target = tf.squeeze(target, -1) if has_dim else target
            own = target - begin
            is_own = (own >= 0) & (own < below.shape[-1])
            picked = pick(below, tf.where(is_own, own, 0))
            is_none = (target < 0) | (target >= size)  # such labels have the loss NaN, as on a GPU
            none = tf.where(is_none, tf.constant(math.nan, picked.dtype), tf.zeros([], picked.dtype))
            return tf.where(is_own, picked, none)

        log, picked = parts(logits, target, labels, of_label)
        return log - picked

    return crossentropy(original, target, output, from_logits, axis, labels, divided)


def categorical_crossentropy(original, target, output, from_logits=False, axis=-1):
    """Costs two all-reduces, of one and of two numbers a row.

    The gradient by logits is TensorFlow's, as if all targets of a row summed to 1.
    """
    labels = list(range(len(output.shape)))

    def divided(target, logits):
        sums = keras.ops.cast(keras.ops.sum(target, axis=-1), logits.dtype.name)
        target = keras.ops.cast(target, logits.dtype.name)
        log, picked = parts(logits, target, labels, lambda below, shares: tf.reduce_sum(below * shares, -1))
        return log - picked + (sums - 1) * keras.ops.stop_gradient(log)

    target = keras.ops.convert_to_tensor(target)
    return crossentropy(original, target, output, from_logits, axis, labels, divided)


def crossentropy(original, target, output, from_logits, axis, labels, divided):
    """A loss that `divided` makes of targets and logits whose classes, the last dim, are divided.

    Args:
        labels: names for the dims of `target`, of which those of `output` are the numbers.
    """
    logits = output if from_logits else getattr(output, "_keras_logits", None)
    output, from_logits = (output, from_logits) if logits is None else (logits, True)
    sizes = tf.TensorShape([1 if dim is None else output.shape[dim] for dim in labels])
    if not isinstance(axis, int) or not target.shape.is_compatible_with(sizes):
        return original(whole(target), whole(output), from_logits, axis)
    classes, names = dim_of(axis, len(output.shape)), list(range(len(output.shape)))
    return compute(
        lambda target, output: original(target, output, from_logits, axis),
        [target, output],
        [labels, names],
        [dim for dim in names if dim != classes],
        divided if from_logits and classes == names[-1] else None,
        undivided=(classes,),
    )


def parts(logits, target, labels, of_label):
    """Of each row the log of the sum of powers, and the label's logit, of which `of_label` makes a rank's part."""
    names = list(range(logits.ndim))
    both = compute(
        lambda below, target: tf.stack([tf.reduce_sum(tf.exp(below), -1), of_label(below, target)]),
        [logits - largest(logits, -1), target],
        [names, labels],
        [None, *names[:-1]],
        combine="total",
    )
    return keras.ops.log(both[0]), both[1]


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


def binary_crossentropy(original, target, output, from_logits=False):
    """Element by element, from the logits where Keras would find them behind a sigmoid. Costs nothing."""
    logits = getattr(output, "_keras_logits", None)
    if logits is not None and not from_logits:
        output, from_logits = logits, True
    return elementwise(lambda target, output: original(target, output, from_logits), target, output)
