"""Says once, at a model's first training step, in what its training is not one process's, if it is not."""

import keras
import tensorflow as tf
from keras import tree

from keras_par.keras_patches.models.binding import Binding, optimizers_of
from keras_par.keras_patches.rows.row_mixing import mixing
from keras_par.keras_patches.step.batch_normalization import is_synchronized
from keras_par.keras_patches.step.metrics import layers
from keras_par.sharding.step import Step
from keras_par.sharding.variable_views import is_sharded, is_summed_backward

LINEAR = (keras.optimizers.SGD, keras.optimizers.Lion)  # whose updates square no gradient
BITS = {"fp16": 11, "bf16": 8}


def say_what_is_inexact(step: Step, model: keras.Model, batch, is_own: bool) -> None:
    """Logs on rank 0 what docs/exactness.md lists and this model does.

    Args:
        step: the one that begins.
        model: whose step it is.
        batch: this rank's rows.
        is_own: True if the step is not Keras's.
    """
    squaring = [each for each in optimizers_of(model) if not isinstance(each, LINEAR)]
    tables = [layer.embeddings for layer in layers(model) if isinstance(layer, keras.layers.Embedding)]
    added = [table.path for table in tables if is_sharded(table) and (is_own or is_summed_backward(table))]
    if squaring and added:
        step.say(
            "%s squares the gradient of table '%s' after equal rows are added, where one process squares the rows one "
            "by one, because %s: train by SGD to have the same",
            type(squaring[0]).__name__,
            added[0],
            "the training step takes it whole" if is_own else "the table is divided along the batch axis",
        )
    if step.communicator.size == 1:
        return
    options = step.binding.options
    normal = [each for each in layers(model) if isinstance(each, keras.layers.BatchNormalization)]
    own = [each.name for each in normal if each.trainable and not is_synchronized(each, options)]
    if own:
        step.say(
            "sync_batch_norm=False lets %d BatchNormalization layer(s) of model '%s' ('%s', ...) normalize each rank's "
            "rows by themselves, not the global batch's as one process would",
            len(own),
            model.name,
            own[0],
        )
    if options.compression is not None:
        step.say(
            "compression='%s' rounds gradients to %d bits before they are added, which one process does not",
            options.compression,
            BITS[options.compression],
        )
    is_sparse = any(isinstance(leaf, tf.SparseTensor) for leaf in tree.flatten(batch))
    if squaring and tf.executing_eagerly() and (tables or is_sparse):
        step.say(
            "%s squares gradients of looked-up rows one by one, and run_eagerly=True hides which of them one process "
            "has once for all ranks, as those of positions and of sparse inputs: train without it to have the same",
            type(squaring[0]).__name__,
        )


def say_what_mixes_rows(step: Step) -> None:
    """Logs on rank 0 that a step which has been traced brings rows of a rank together, and no others."""
    found = None if step.communicator.size == 1 or step.rows is None else mixing(step.rows)
    if found is not None:
        step.say(
            "the step %s rows of the batch%s, each rank its own, so that they meet other rows than in one process: do "
            "it in the input, where batches are whole, as by dataset.batch(n).map, or take the rows of all ranks by "
            "kp.ops.all_gather",
            *found,
        )


def say_of_unknown_length(binding: Binding, model: keras.Model) -> None:
    """Logs what one process does at the end of data of unknown length, if it changes how this model trains.

    The step that finds the end fails there, but only after it has counted itself and drawn: TensorFlow starts what
    does not depend on the batch at once.
    """
    draws = any(layer._seed_generators for layer in layers(model))
    schedule = keras.optimizers.schedules.LearningRateSchedule
    counts = any(not isinstance(o, LINEAR) or isinstance(o._learning_rate, schedule) for o in optimizers_of(model))
    if (draws or counts) and not model.run_eagerly:
        binding.say(
            "the data's length is unknown, and at its end one process counts one step too many, in its optimizer's "
            "iterations and its random numbers, and ranks count right: data.apply(tf.data.experimental."
            "assert_cardinality(n)) or steps_per_execution=2 make one process count right, too",
        )
