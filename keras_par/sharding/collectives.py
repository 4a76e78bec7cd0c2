"""Differentiable collectives, in pairs of which one is the other's backward pass.

They keep one promise: the gradient of a tensor that all ranks of a group hold alike is whole and alike on all of them,
and the gradient of a shard is that shard of the whole gradient. `enter` and `total` are the f and g of Shoeybi et al.,
"Megatron-LM" (2019).

What a collective takes lies along the first dim. Pieces of equal length are moved as wholes, as fast as in a copy; of
others the dim is moved to the front, number by number.

Within one call of a model a tensor is entered once: query, key and value of an attention read the same one, whose three
gradients are then added before one all-reduce.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import should_record_backprop

from keras_par.comm import call_site
from keras_par.comm.communicator import Communicator
from keras_par.plan.division import Move
from keras_par.plan.layout import length_of, part_of
from keras_par.sharding.collective_names import unique

_memory: contextvars.ContextVar[dict | None] = contextvars.ContextVar("keras_par_memory", default=None)


@contextlib.contextmanager
def remembered_in(memory: dict | None) -> Iterator[None]:
    """Within it what is made once is kept in this dictionary, which lives as long as a model's call; None for none."""
    token = _memory.set(memory)
    try:
        yield
    finally:
        _memory.reset(token)


def once(tensor: tf.Tensor, what: str, make: Callable[[], tf.Tensor]) -> tf.Tensor:
    """`make()`, which makes `what` of `tensor`, or what it was when this call of the model asked for it before."""
    found = _memory.get()
    if found is None:
        return make()
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    key = id(tensor), what, id(graph)
    if key not in found or is_lost(tensor, found[key][1]):
        found[key] = tensor, make()
    return found[key][1]


def is_lost(tensor: tf.Tensor, made: tf.Tensor) -> bool:
    """True if a tape sees `tensor` but not what was made of it, because the tape was started in between."""
    return should_record_backprop([tensor]) and not should_record_backprop([made])


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
        given = to_gather(x, dim, whole, group.size)
        if given.shape.is_fully_defined() and whole % group.size == 0:
            [rows] = group.all_gather_equal([given], name)
        else:
            rows = group.all_gather(given, name)
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


def to_scatter(tensor: tf.Tensor, dim: int, num_ranks: int) -> tf.Tensor:
    """A tensor whose dim 0 a reduce-scatter divides over the ranks as they divide `dim` of this one."""
    length = tensor.shape[dim]
    if dim == 0 or length % num_ranks:
        return to_front(tensor, dim)
    shape = sizes_of(tensor)
    cut = tf.reshape(tensor, [*shape[:dim], num_ranks, length // num_ranks, *shape[dim + 1 :]])
    return to_front(cut, dim)


def from_scatter(part: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """This rank's shard along `dim`, of which the whole has a `length`, out of its part of what was scattered."""
    return from_front(part, dim) if dim == 0 or length % num_ranks else tf.squeeze(part, 0)


def to_gather(shard: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """A tensor whose kin of all ranks an all-gather joins along dim 0, so that `from_gather` finds the whole."""
    return to_front(shard, dim) if dim == 0 or length % num_ranks else tf.expand_dims(shard, 0)


def from_gather(rows: tf.Tensor, dim: int, length: int, num_ranks: int) -> tf.Tensor:
    """The whole, of a `length` along `dim`, out of what was gathered."""
    if dim == 0 or length % num_ranks:
        return from_front(rows, dim)
    joined = from_front(rows, dim)
    shape = sizes_of(joined)
    return tf.reshape(joined, [*shape[:dim], length, *shape[dim + 2 :]])


def to_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """`tensor` with `dim` before all others."""
    rest = [other for other in range(tensor.shape.rank) if other != dim]
    return tensor if dim == 0 else tf.transpose(tensor, [dim, *rest])


def from_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """What `to_front` made, as it was."""
    order = [*range(1, dim + 1), 0, *range(dim + 1, tensor.shape.rank)]
    return tensor if dim == 0 else tf.transpose(tensor, order)


def sizes_of(tensor: tf.Tensor) -> list:
    """Of each dim the size, as a number where it is known."""
    sizes = tensor.shape.as_list()
    unknown: Any = tf.shape(tensor) if None in sizes else None
    return [unknown[place] if size is None else size for place, size in enumerate(sizes)]
