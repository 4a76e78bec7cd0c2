"""Gathers weights that ranks with other rows divide where an operation uses them, and again for its gradient.

In between they are in no rank's memory, as in the third stage of ZeRO (Rajbhandari et al., 2020).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from keras_par.comm import call_site
from keras_par.comm.communicator import Communicator
from keras_par.comm.reducer import HALVES
from keras_par.plan.layout import Axes
from keras_par.sharding import prefetch_window
from keras_par.sharding import step as steps
from keras_par.sharding.collectives import differentiable, gather, is_lost, scatter
from keras_par.sharding.mesh import RankMesh
from keras_par.sharding.tensor import ShardedTensor


class GatheredOnUse(ShardedTensor):
    """A weight of which ranks with other rows store a shard each, besides how other axes divide it.

    It is of one graph. What does not know it gets `local`, which is gathered once and kept for the backward pass.

    Args:
        stored: this rank's shard.
        dim: that ranks with other rows divide.
        length: of that dim, of which shards may differ by one.
        rows: these ranks.
        axes: for each dim the other axis that divides it, or None.
        mesh: of the axes.
        dtype: that computes, in which the weight is gathered.
    """

    def __init__(
        self,
        stored: tf.Tensor,
        dim: int,
        length: int,
        rows: Communicator,
        axes: Axes,
        mesh: RankMesh,
        dtype: tf.DType,
    ):
        super().__init__(stored, axes, mesh)
        self.stored, self._dim, self._length, self._rows, self._dtype = stored, dim, length, rows, dtype
        shape = self._shape.as_list()
        shape[dim] = length
        self._shape = tf.TensorShape(shape)
        self._gathered: tuple[Any, tf.Tensor] | None = None

    @property
    def dtype(self) -> tf.DType:
        """Of its elements."""
        return self._dtype

    @property
    def local(self) -> tf.Tensor:
        """Gathered over the ranks with other rows. Costs one all-gather, and one reduce-scatter backward."""
        graph, known = tf.compat.v1.get_default_graph(), self._gathered
        if known is None or known[0] is not graph or is_lost(self.stored, known[1]):
            others = prefetch_window.current().before_gather()
            known = self._gathered = graph, differentiable(lambda x: self.gather(x, others), self.scatter, self.stored)
        return known[1]

    def gather(self, stored: tf.Tensor, others: Sequence[tf.Tensor]) -> tf.Tensor:
        """The weight of which these are the shards, once the others are there. Costs one all-gather."""
        return gather(tf.cast(prefetch_window.after(stored, others), self.dtype), self._dim, self._rows, self._length)

    def scatter(self, gradient: Any) -> tf.Tensor:
        """This rank's shard of the sum of the weight's gradients. Costs one reduce-scatter."""
        half, dtype = half_of_step(), self.stored.dtype
        shape = self.stored.shape.as_list()
        shape[self._dim] = self._length
        gradient = tf.cast(tf.ensure_shape(gradient, shape), dtype)
        sent = gradient if half is None else tf.cast(gradient, half)
        shard = tf.cast(scatter(sent, self._dim, self._rows), dtype)
        prefetch_window.current().scattered(shard)
        return shard


def half_of_step() -> tf.DType | None:
    """The dtype in which the strategy of the step under way has gradients sent, None if they are sent as they are."""
    step = steps.current()
    return None if step is None else HALVES.get(step.binding.options.compression)


class Deferred:
    """An operand of an operation that is to be gathered within it.

    Args:
        weight: the operand.
        change: what is done to it once it is gathered.
    """

    def __init__(self, weight: GatheredOnUse, change: Callable[[tf.Tensor], tf.Tensor]):
        self.weight, self.change = weight, change


def applied(local: Callable[..., tf.Tensor], parts: Sequence[Any]) -> tf.Tensor:
    """`local(*parts)`, where some parts may be `Deferred`.

    These cost one all-gather each, and backward another one and a reduce-scatter.
    """
    deferred = [part for part in parts if isinstance(part, Deferred)]
    if not deferred:
        return local(*parts)
    tensors = [part for part in parts if isinstance(part, tf.Tensor) and has_gradient(part)]
    here = call_site.current()

    def computed(given: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> tf.Tensor:
        rest, own = iter(given), iter(zip(deferred, weights, strict=True))

        def filled(part: Any) -> Any:
            if isinstance(part, Deferred):
                each, weight = next(own)
                return each.change(weight)
            return next(rest) if isinstance(part, tf.Tensor) and has_gradient(part) else part

        return local(*map(filled, parts))

    def gathered(stored: Sequence[tf.Tensor], others: list[tf.Tensor]) -> list[tf.Tensor]:
        return [each.weight.gather(shard, others) for each, shard in zip(deferred, stored, strict=True)]

    @tf.custom_gradient
    def call(*values):
        given, stored = values[: len(tensors)], values[len(tensors) :]
        result = computed(given, gathered(stored, prefetch_window.current().before_gather()))
        prefetch_window.current().used(result)

        def backward(upstream):
            upstream = tf.ensure_shape(tf.convert_to_tensor(upstream), result.shape)
            with call_site.within(here):
                weights = gathered(stored, [upstream])
                with tf.GradientTape() as tape:
                    tape.watch([*given, *weights])
                    again = computed(given, weights)  # of which nothing runs but what gradients need
                gradients = tape.gradient(again, [*given, *weights], upstream)
                others = prefetch_window.current().before_going_back()
                pairs = zip(deferred, gradients[len(given) :], strict=True)
                shards = [each.weight.scatter(gradient) for each, gradient in pairs]
                back = [
                    None if each is None else prefetch_window.after(each, others) for each in gradients[: len(given)]
                ]
                return [*back, *shards]

        return result, backward

    return call(*tensors, *(each.weight.stored for each in deferred))


def has_gradient(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
