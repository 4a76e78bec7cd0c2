"""Differentiable collectives, in pairs of which one is the other's backward pass.

They keep one promise: the gradient of a tensor that all ranks of a group hold alike is whole and alike on all of them,
and the gradient of a shard is that shard of the whole gradient. `enter` and `total` are the f and g of Shoeybi et al.,
"Megatron-LM" (2019).
"""

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_par.comm import call_site
from keras_par.comm.communicator import Communicator
from keras_par.plan.division import Move
from keras_par.plan.layout import length_of, part_of
from keras_par.sharding.chunks import from_gather, from_scatter, to_gather, to_scatter
from keras_par.sharding.collective_names import unique
from keras_par.sharding.per_call import once


def enter(tensor: tf.Tensor, group: Communicator) -> tf.Tensor:
    """`tensor`, alike on all ranks, where each rank goes on with a part of the work; backward sums the parts.

    Costs nothing forward and one all-reduce of the tensor's size backward.
    """
    return differentiable(lambda x: tf.identity(x), lambda upstream: total(upstream, group), tensor)


def total(tensor: tf.Tensor, group: Communicator) -> tf.Tensor:
    """The sum of the ranks' `tensor`s, on all of them. Costs one all-reduce forward and nothing backward."""
    name = unique("total")
    return differentiable(
        lambda x: group.all_reduce([x], name)[0], lambda upstream: enter(upstream, group), tensor, tensor.shape
    )


def largest(tensor: tf.Tensor, group: Communicator) -> tf.Tensor:
    """The largest of the ranks' elements at each place, without a gradient. Costs one all-reduce."""
    return group.all_reduce([tf.stop_gradient(tensor)], unique("largest"), "max")[0]


def split(tensor: tf.Tensor, dim: int, group: Communicator) -> tf.Tensor:
    """This rank's shard along `dim` of a tensor that all ranks hold. Costs one all-gather backward."""
    length = tensor.shape[dim]
    part = part_of(length, group.size, group.rank)
    begin = [0] * tensor.shape.rank
    begin[dim] = part.start
    size = [-1] * tensor.shape.rank
    size[dim] = part.stop - part.start
    return differentiable(
        lambda x: tf.slice(x, begin, size), lambda upstream: gather(upstream, dim, group, length), tensor
    )


def gather(tensor: tf.Tensor, dim: int, group: Communicator, length: int | None = None) -> tf.Tensor:
    """The ranks' shards joined along `dim`, on all of them. Costs one all-gather forward and nothing backward.

    With a `length` of the whole, shards may differ in theirs by one.
    """
    return joined(tensor, dim, group, lambda upstream: split(upstream, dim, group), length)


def gather_and_enter(tensor: tf.Tensor, dim: int, group: Communicator, length: int | None = None) -> tf.Tensor:
    """As `enter` of `gather`, with one reduce-scatter backward."""
    return joined(tensor, dim, group, lambda upstream: scatter(upstream, dim, group), length)


def scatter(tensor: tf.Tensor, dim: int, group: Communicator) -> tf.Tensor:
    """This rank's shard along `dim` of the sum of the ranks' `tensor`s.

    Costs one reduce-scatter forward and one all-gather backward.
    """
    name = unique("scatter")
    shape, length = tensor.shape.as_list(), tensor.shape[dim]
    shape[dim] = length_of(length, group.size, group.rank)

    def forward(x):
        [part] = group.reduce_scatter([to_scatter(x, dim, group.size)], name)
        return from_scatter(part, dim, length, group.size)

    return differentiable(forward, lambda upstream: gather(upstream, dim, group, length), tensor, shape)


def changed(tensor: tf.Tensor, moves: Sequence[Move], group_of: Callable[[str], Communicator]) -> tf.Tensor:
    """A tensor after some moves along axes, of which `group_of` has the ranks."""
    for move in moves:
        tensor = moved(tensor, move, group_of(move.axis))
    return tensor


def moved(tensor: tf.Tensor, move: Move, group: Communicator) -> tf.Tensor:
    """A tensor after one move along an axis; one of whole numbers has no gradient to be summed."""
    if move.kind == "enter":
        if not (tensor.dtype.is_floating or tensor.dtype.is_complex):
            return tensor
        return once(tensor, f"entered {move.axis}", functools.partial(enter, tensor, group))
    if move.dim is None:
        return {"total": total, "largest": largest}[move.kind](tensor, group)
    change = {"gather": gather, "gather_and_enter": gather_and_enter, "split": split, "scatter": scatter}[move.kind]
    return change(tensor, move.dim, group)


def joined(
    tensor: tf.Tensor, dim: int, group: Communicator, backward: Callable, length: int | None = None
) -> tf.Tensor:
    name = unique("gather")
    shape = tensor.shape.as_list()
    whole = shape[dim] = shape[dim] * group.size if length is None else length

    def forward(x):
        rows = group.all_gather(to_gather(x, dim, whole, group.size), name)
        return from_gather(rows, dim, whole, group.size)

    return differentiable(forward, backward, tensor, shape)


def differentiable(forward: Callable, backward: Callable, tensor: tf.Tensor, shape=None) -> tf.Tensor:
    """`forward(tensor)`, of a known `shape`, whose gradient is `backward(upstream)`."""
    here = call_site.current()

    @tf.custom_gradient
    def call(x):
        def gradient(upstream):
            upstream = tf.convert_to_tensor(upstream)  # lookups have gradients of single rows
            if not upstream.shape.is_fully_defined():
                upstream = tf.ensure_shape(upstream, result.shape)
            with call_site.within(here):
                return backward(upstream)

        result = forward(x)
        if shape is not None:
            result = tf.ensure_shape(result, shape)
        return result, gradient

    return call(tensor) if tensor.dtype.is_floating or tensor.dtype.is_complex else plainly(forward, tensor, shape)


def plainly(forward: Callable, tensor: tf.Tensor, shape) -> tf.Tensor:
    result = forward(tensor)
    return result if shape is None else tf.ensure_shape(result, shape)
