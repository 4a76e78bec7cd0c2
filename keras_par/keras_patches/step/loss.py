"""Gives losses the divisor of the global batch where it is not the number of rows: sums, masks and weighted means."""

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from keras_par.keras_patches.rows.row_dims import Rows
from keras_par.keras_patches.step.known_losses import require_known
from keras_par.keras_patches.step.replay import is_again
from keras_par.sharding import step as steps


def reduce_weighted_values(original):
    """Returns a local loss of which the step's scalars, means weighted by rows or sums, make the global batch's.

    A mean over rows is a mean already, and values of single rows stay what they are. A sum is divided by this rank's
    share; a mean over unmasked entries, or over sample weights, takes its divisor from all ranks, which costs one
    all-reduce of a scalar. In a step whose scalars are sums each of them is multiplied by the share.
    """

    def replacement(values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None):
        step = steps.current()
        reduction = keras_loss.standardize_reduction(reduction)
        plain_mean = reduction in ("sum_over_batch_size", "mean") and mask is None
        unweighted = reduction == "mean_with_sample_weight" and mask is None and sample_weight is None
        if step is None or reduction in (None, "none"):
            return original(values, sample_weight, mask, reduction, dtype)
        if plain_mean or unweighted:
            loss = original(values, sample_weight, mask, reduction, dtype)
            return step.times(loss, step.share(loss.dtype)) if step.adds_up else loss
        total = original(values, sample_weight, mask, "sum", dtype)
        factor = tf.ones([], total.dtype) if step.adds_up else step.inverse_share(total.dtype)
        if reduction == "sum":
            return step.times(total, factor)
        weights = divisor(values, sample_weight, mask, reduction, total.dtype)
        weights = tf.where(step.local > 0, weights, 0)
        weights = step.sum(weights, "divisor", "a loss with a mask or with reduction='mean_with_sample_weight'")
        if reduction != "mean_with_sample_weight":
            # Where all is masked the total is 0, or NaN if a value is, which is Keras's result, too.
            weights = tf.where(weights > 0, weights, tf.ones_like(weights))
        return tf.math.divide_no_nan(total, weights) * factor

    return replacement


def add_loss(original):
    """Makes sums over rows that Keras's own step adds to its mean what they are of the global batch, if told so.

    What a layer adds when it is computed again was added the first time.
    """

    def replacement(self, loss):
        if is_again():
            return None
        step = steps.current()
        if step is not None and step.is_stock:
            require_known(step, keras.tree.flatten(loss))
            if step.probed is not None:
                step.probed.losses += [each for each in keras.tree.flatten(loss) if isinstance(each, tf.Tensor)]
            loss = keras.tree.map_structure(lambda each: added(step, each), loss)
        return original(self, loss)

    return replacement


def added(step: steps.Step, loss):
    """What a layer adds to the loss, so that with the step's weights it is what one process adds.

    Keras sums a vector. Where it has a number for each row, that is a sum over rows.
    """
    is_sum = step.binding.custom_loss == "sum"
    if isinstance(loss, tf.Tensor) and loss.shape.rank and step.rows is not None:
        is_sum = isinstance(step.rows.size(step.rows.of(loss), loss.shape[0]), Rows)
    return step.times(loss, step.inverse_share(loss.dtype)) if is_sum else loss


def regularization_losses(original):
    """In a step whose scalars are sums a regularizer's loss, which all ranks have, is multiplied by the share."""

    def replacement(self):
        losses = original(self)
        step = steps.current()
        if step is None or not step.adds_up:
            return losses
        return [each * step.share(each.dtype) for each in losses]

    return replacement


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
