"""Gives losses the divisor of the global batch where it is not the number of rows: sums, masks and weighted means."""

import tensorflow as tf
from keras.src.losses import loss as keras_loss

from keras_par.seam import step as steps
from keras_par.seam.patch import wrap


def install() -> None:
    """Wraps the one function in which Keras reduces a batch's loss values."""
    wrap(keras_loss, "reduce_weighted_values", reduce_weighted_values)


def reduce_weighted_values(original):
    """Returns a local loss such that the mean over ranks, weighted by rows, is the loss of the global batch.

    A mean over rows is that already, and values of single rows stay what they are. A sum is divided by this rank's
    share; a mean over unmasked entries, or over sample weights, takes its divisor from all ranks, which costs one
    all-reduce of a scalar.
    """

    def replacement(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        step = steps.current()
        reduction = keras_loss.standardize_reduction(reduction)
        plain_mean = reduction in ("sum_over_batch_size", "mean") and mask is None
        unweighted = reduction == "mean_with_sample_weight" and mask is None and sample_weight is None
        if step is None or plain_mean or unweighted or reduction in (None, "none"):
            return original(values, sample_weight, mask, reduction, dtype)
        if reduction == "sum":
            loss = original(values, sample_weight, mask, reduction, dtype)
            return loss * inverse_share(step, loss.dtype)
        total = original(values, sample_weight, mask, "sum", dtype)
        weights = divisor(values, sample_weight, mask, reduction, total.dtype)
        weights = tf.where(step.local > 0, weights, 0)
        weights = step.sum(weights, "divisor", "a loss with a mask or with reduction='mean_with_sample_weight'")
        return tf.math.divide_no_nan(total, weights) * inverse_share(step, total.dtype)

    return replacement


def inverse_share(step: steps.Step, dtype) -> tf.Tensor:
    return tf.math.divide_no_nan(tf.cast(step.total, dtype), tf.cast(step.local, dtype))


def divisor(values, sample_weight, mask, reduction: str, dtype) -> tf.Tensor:
    """This rank's part of what Keras divides the weighted sum of loss values by."""
    if reduction == "mean_with_sample_weight":
        merged = keras_loss.apply_mask(
            None if sample_weight is None else tf.convert_to_tensor(sample_weight), mask, dtype, reduction
        )
        return tf.reduce_sum(tf.cast(merged, dtype))
    # Keras weights entries by (size of mask / unmasked) and divides by the number of values. Both sizes are
    # proportional to the rows, so their ratio is the same on every rank that has any.
    valid = tf.reduce_sum(tf.cast(mask, dtype))
    return valid * tf.math.divide_no_nan(tf.cast(tf.size(values), dtype), tf.cast(tf.size(mask), dtype))
