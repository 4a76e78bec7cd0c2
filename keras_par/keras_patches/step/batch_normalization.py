"""Batch normalization by the rows of all ranks, as one process normalizes, unless the strategy says otherwise."""

import keras
import tensorflow as tf
from keras.src.layers.normalization.batch_normalization import BatchNormalization

from keras_par.comm import custom_loop, differentiable
from keras_par.keras_patches.step.metrics import layers
from keras_par.plan.options import Options
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import is_in_loop, num_functions, numbered
from keras_par.sharding.tensor import ShardedTensor


def is_synchronized(layer: keras.layers.Layer, options: Options) -> bool:
    """True for batch normalization by the rows of all ranks, which a layer's own configuration may ask for, too."""
    return isinstance(layer, BatchNormalization) and (options.sync_batch_norm or layer.synchronized)


def synchronized_layers(model: keras.Model, options: Options) -> list[keras.layers.Layer]:
    """Those among a model's layers."""
    return [layer for layer in layers(model) if is_synchronized(layer, options)]


def moments(original):
    """Moments of the global batch for a synchronized layer, of this rank's rows otherwise, and where ranks cannot talk.

    In a loop of a graph TensorFlow can make no gradient of a collective through shared memory. A function that the step
    calls is traced once for all who call it, which some ranks may do outside of a step.
    """

    def replacement(self, inputs, mask):
        step = steps.current()
        if step is None:
            custom_loop.note_normalized(self.path)
        if step is None or not step.binding.is_distributed or not is_synchronized(self, step.binding.options):
            return original(self, inputs, mask)
        if step.probed is not None:  # which compares rows and halves of them, whose own moments would be others
            channels = [size for dim, size in enumerate(inputs.shape) if dim not in self._reduction_axes]
            return tf.zeros(channels, inputs.dtype), tf.ones(channels, inputs.dtype)
        if is_in_loop() or num_functions():
            step.say(
                "layer '%s' normalizes each rank's rows by themselves, as ranks cannot talk within a loop of a graph "
                "or a tf.function that the step calls: use a loop of Python's (unroll=True of an RNN), and no "
                "tf.function within a train_step",
                self.path,
            )
            return original(self, inputs, mask)
        if step.communicator.size == 1:
            return original(self, inputs, mask)
        if not isinstance(inputs, ShardedTensor):
            return global_moments(step, inputs, mask, self._reduction_axes)
        per_channel = tuple(axis for dim, axis in enumerate(inputs.axes) if dim not in self._reduction_axes)
        if any(inputs.axes[dim] for dim in self._reduction_axes):
            return global_moments(step, inputs.whole(), mask, self._reduction_axes)
        mean, variance = global_moments(step, inputs.local, mask, self._reduction_axes)
        return ShardedTensor(mean, per_channel, inputs.mesh), ShardedTensor(variance, per_channel, inputs.mesh)

    return replacement


def global_moments(step: steps.Step, inputs: tf.Tensor, mask, dims: list[int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of `inputs` over `dims` and all ranks, each of the remaining dim's shape.

    The gradient is that of TensorFlow's moments (of Keras's, with a mask), to which the mean is a constant where it is
    taken twice. Costs one all-reduce forward, of 2 C + 1 numbers of 8 bytes for C channels (3 C with a mask), and one
    backward, of 2 C elements.
    """
    step.require_plain("batch normalization by the rows of all ranks")
    kept = None if mask is None else tf.cast(tf.broadcast_to(tf.expand_dims(mask, -1), tf.shape(inputs)), tf.bool)
    more = 0.0 if mask is None else keras.config.epsilon()  # that Keras's own masked moments add to the count
    per_channel = [1 if dim in dims else -1 for dim in range(inputs.shape.rank)]

    def of_rows(tensor: tf.Tensor) -> tf.Tensor:
        return tf.where(step.local > 0, tensor, tf.zeros_like(tensor)) if step.thin else tensor

    @tf.custom_gradient
    def call(x):
        sums = own_sums(x, kept, dims)
        [everything] = step.communicator.all_reduce([of_rows(tf.concat(sums, 0))], numbered("moments"))
        count, total, squares = tf.split(everything, [each.shape[0] for each in sums])
        wide_mean = total / (count + more)
        spread = tf.maximum(squares - wide_mean * (2 * total - count * wide_mean), 0)
        wide = wide_mean, spread / (count + more), 1 / (count + more), more * wide_mean / (count + more)
        mean, variance, inverse, shift = (tf.stop_gradient(tf.cast(each, x.dtype)) for each in wide)

        def backward(*upstream):
            own = of_rows(tf.concat(upstream, 0))
            [everything] = differentiable.total([own], step.communicator, lambda kind: numbered("moments"))
            of_mean, of_variance = (each * inverse for each in tf.split(everything, 2))
            rest = of_mean - 2 * shift * of_variance
            rest, factor, center = (tf.reshape(each, per_channel) for each in (rest, 2 * of_variance, mean))
            gradient = of_rows(masked(rest + factor * (x - center), kept))
            return differentiable.kept(gradient, everything) if step.thin else gradient

        return (mean, variance), backward

    return call(inputs)


def own_sums(x: tf.Tensor, kept: tf.Tensor | None, dims: list[int]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Count, sum and sum of squares of this rank's elements, in float64, for each channel; one count without a mask.

    The squares are made of the mean and of squared deviations from it, since squares of float32 would lose in a
    variance what the mean has more.
    """
    if kept is None:
        counts = tf.reshape(tf.reduce_prod(tf.gather(tf.shape(x), dims)), [1] * x.shape.rank)
    else:
        counts = tf.reduce_sum(tf.cast(kept, x.dtype), dims, keepdims=True)
    mean = tf.math.divide_no_nan(tf.reduce_sum(masked(x, kept), dims, keepdims=True), tf.cast(counts, x.dtype))
    deviations = tf.reduce_sum(masked(tf.math.squared_difference(x, mean), kept), dims)
    count, mean, deviations = (tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (counts, mean, deviations))
    return count, count * mean, deviations + count * tf.square(mean)


def masked(tensor: tf.Tensor, kept: tf.Tensor | None) -> tf.Tensor:
    """The tensor with zeros where its elements are not kept; all of it without a mask."""
    return tensor if kept is None else tf.where(kept, tensor, tf.zeros_like(tensor))
