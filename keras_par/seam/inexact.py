"""Says once, at a model's first training step, in what its training is not one process's, if it is not."""

import keras
import tensorflow as tf
from keras import tree

from keras_par.seam.binding import optimizers_of
from keras_par.seam.metrics import layers
from keras_par.seam.step import Step

LINEAR = (keras.optimizers.SGD, keras.optimizers.Lion)  # whose updates square no gradient
BITS = {"fp16": 11, "bf16": 8}


def say_what_is_inexact(step: Step, model: keras.Model, batch) -> None:
    """Logs on rank 0 what docs/exactness.md lists and this model does.

    Args:
        step: the one that begins.
        model: whose step it is.
        batch: this rank's rows.
    """
    if step.communicator.size == 1:
        return
    own = [layer.name for layer in layers(model) if is_unsynchronized(layer)]
    if own:
        step.say(
            "%d BatchNormalization layer(s) of model '%s' ('%s', ...) normalize each rank's rows by themselves, not "
            "the global batch's as one process would: kp.DataParallel(sync_batch_norm=True) synchronizes them",
            len(own),
            model.name,
            own[0],
        )
    compression = step.binding.options.compression
    if compression is not None:
        step.say(
            "compression='%s' rounds gradients to %d bits before they are added, which one process does not",
            compression,
            BITS[compression],
        )
    squaring = [each for each in optimizers_of(model) if not isinstance(each, LINEAR)]
    if squaring and any(isinstance(leaf, tf.SparseTensor) for leaf in tree.flatten(batch)):
        step.say(
            "%s squares the rows of a sparse input's gradient one by one, and two ranks that meet the same row have "
            "two of them where one process has one: give dense inputs, or train by SGD",
            type(squaring[0]).__name__,
        )


def is_unsynchronized(layer: keras.layers.Layer) -> bool:
    """True for batch normalization that learns and sees a rank's rows only."""
    is_kind = isinstance(layer, keras.layers.BatchNormalization)
    return is_kind and layer.trainable and not layer.synchronized
