"""Reduces gradients over the ranks: in buckets, compressed where asked, sparse ones as gathered rows."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from keras_par.comm import custom_loop, world
from keras_par.comm.communicator import Communicator
from keras_par.plan.buckets import fill_buckets
from keras_par.plan.options import Compression, Options, require, require_megabytes

HALVES = {"fp16": tf.float16, "bf16": tf.bfloat16}

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices | None


_numbers = itertools.count()


class GradientReducer:
    """Sums or averages the gradients of a hand-written training loop over all ranks.

    Example:
        ```python
        kp.init()
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        optimizer = keras.optimizers.SGD(0.1)
        kp.broadcast_variables(model.variables)  # all ranks begin alike
        reducer = kp.GradientReducer(mean=True)
        x = tf.fill([4, 1], kp.rank() + 1.0)  # this rank's rows
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - x))
        gradients = reducer(tape.gradient(loss, model.trainable_variables))
        optimizer.apply(gradients, model.trainable_variables)
        [float(gradient) for gradient in gradients[1]]  # -> [-3.0]
        ```

    Every rank must create its reducers in the same order and call each with gradients of the same shapes. Within
    one step a reducer may be called once; use a second one for a second set of gradients.

    Args:
        mean: True averages over the ranks, False sums.
        fusion_mb: size in megabytes up to which gradients share one all-reduce.
        compression: "fp16" or "bf16" sends float32 and float64 gradients in half the bytes or less, None as they are.
            Sums of fp16 are exact to about 3 digits and overflow above 65504; bf16 keeps float32's range with about 2
            digits.

    Raises:
        ValueError: `fusion_mb` is not positive, or `compression` is unknown.

    Costs one all-reduce for each `fusion_mb` of gradients and two all-gathers for each IndexedSlices, in each call.
    """

    def __init__(self, mean: bool = True, fusion_mb: float = Options.fusion_mb, compression: Compression = None):
        require_megabytes(fusion_mb)
        require("compression", compression)
        self._mean = mean
        self._limit = int(fusion_mb * 2**20)
        self._compression: Compression = compression
        self._name = f"kp.reducer{next(_numbers)}"

    def __call__(self, gradients: Sequence[Gradient]) -> list[Gradient]:
        """The reduced `gradients`; None stays None, IndexedSlices stay IndexedSlices.

        Costs one all-reduce for each bucket, and two all-gathers for each IndexedSlices.
        """
        communicator = world.current()
        gradients = list(gradients)
        if communicator.size > 1:
            custom_loop.say(communicator.rank, any(isinstance(each, tf.IndexedSlices) for each in gradients))
        if self._mean and communicator.size > 1:
            gradients = [scaled(gradient, 1.0 / communicator.size) for gradient in gradients]
        return sum_gradients(communicator, gradients, self._name, self._limit, self._compression)


def scaled(gradient: Gradient, factor, no_nan: bool = False) -> Gradient:
    """`gradient` times the scalar `factor` (a number or a tensor); None stays None.

    With `no_nan` a factor of 0 makes 0 of NaN, too.
    """
    if gradient is None:
        return None
    times = tf.math.multiply_no_nan if no_nan else tf.multiply
    if isinstance(gradient, tf.IndexedSlices):
        values = times(gradient.values, tf.cast(factor, gradient.dtype))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return times(gradient, tf.cast(factor, gradient.dtype))


def values_of(gradient: Any) -> tf.Tensor:
    """The numbers of a gradient, those of its rows if it is slices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Any, values: tf.Tensor, indices: tf.Tensor | None = None) -> Any:
    """`gradient` with other values, and with other indices unless None."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(values, gradient.indices if indices is None else indices, gradient.dense_shape)
    return values


def sum_gradients(
    communicator: Communicator,
    gradients: Sequence[Gradient],
    name: str,
    limit: int,
    compression: Compression,
    are_even: bool = False,
) -> list[Gradient]:
    """Sums `gradients` over the ranks in buckets of at most `limit` bytes each.

    Args:
        communicator: of the ranks.
        gradients: each None, a tensor of the same shape on all ranks, or IndexedSlices.
        name: that of the collectives begins with it.
        limit: bytes.
        compression: of dense gradients.
        are_even: True if IndexedSlices whose shapes are known while tracing have the same ones on all ranks.
    """
    reduced: list[Any] = list(gradients)
    if communicator.size == 1:
        return reduced
    dense = [i for i, gradient in enumerate(reduced) if isinstance(gradient, tf.Tensor)]
    sparse = [i for i, gradient in enumerate(reduced) if isinstance(gradient, tf.IndexedSlices)]
    sizes = [(reduced[i].shape.num_elements() or 0) * reduced[i].dtype.size for i in dense]
    kinds = [reduced[i].dtype for i in dense]
    for number, bucket in enumerate(fill_buckets(sizes, kinds, limit)):
        places = [dense[k] for k in bucket]
        given = [reduced[i] for i in places]
        sums = communicator.all_reduce(given, f"{name}.{number}", sent_as=sent_as(given[0].dtype, compression))
        for i, total in zip(places, sums, strict=True):
            reduced[i] = total
    equal = [i for i in sparse if are_even and has_known_shape(reduced[i])]
    if equal:
        tensors = [tensor for i in equal for tensor in (reduced[i].values, reduced[i].indices)]
        gathered = iter(communicator.all_gather_equal(tensors, f"{name}.sparse"))
        for i in equal:
            reduced[i] = tf.IndexedSlices(next(gathered), next(gathered), reduced[i].dense_shape)
    for i in sparse:
        if i not in equal:
            reduced[i] = sum_slices(communicator, reduced[i], f"{name}.sparse{i}")
    return reduced


def has_known_shape(slices: tf.IndexedSlices) -> bool:
    return slices.values.shape.is_fully_defined() and slices.indices.shape.is_fully_defined()


def sent_as(dtype: tf.DType, compression: Compression) -> tf.DType | None:
    """The dtype in which compressed numbers of a dtype are sent, None if they are sent as they are."""
    return HALVES[compression] if compression is not None and dtype in (tf.float32, tf.float64) else None


def sum_slices(communicator, slices: tf.IndexedSlices, name: str) -> tf.IndexedSlices:
    """The rows of all ranks, one after another: equal indices add up where the optimizer applies them."""
    return tf.IndexedSlices(
        communicator.all_gather(slices.values, f"{name}.values"),
        communicator.all_gather(slices.indices, f"{name}.indices"),
        slices.dense_shape,
    )
