"""Collectives with gradients: a value that all ranks use has the sum of the gradients that they find for it.

Each takes `name`, a function that gives the name of the next collective of a kind. It is called for the backward pass
too, so that a gradient that is taken twice has other names each time.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_par.comm.communicator import Communicator

Name = Callable[[str], str]


def total(tensors: Sequence[tf.Tensor], group: Communicator, name: Name) -> list[tf.Tensor]:
    """Each tensor (equal shapes on all ranks, one dtype) summed over the ranks. Costs one all-reduce each way."""

    @tf.custom_gradient
    def call(*given):
        def backward(*upstream):
            return total(upstream, group, name)

        return group.all_reduce(given, name("reduce")), backward

    return with_gradient(call, lambda *given: group.all_reduce(given, name("reduce")), tensors)


def gather(tensor: tf.Tensor, group: Communicator, name: Name) -> tf.Tensor:
    """The ranks' rows, one rank's after the other's; their numbers of rows may differ.

    Costs one all-gather forward, and backward one all-reduce of the result and one all-gather of a number.
    """

    def forward(x):
        return tf.ensure_shape(group.all_gather(x, name("gather")), [None, *x.shape[1:]])

    @tf.custom_gradient
    def call(x):
        def backward(upstream):
            [everything] = total([tf.convert_to_tensor(upstream)], group, name)
            return tf.ensure_shape(own_rows(everything, x, group, name), x.shape)

        return forward(x), backward

    return with_gradient(call, forward, [tensor])


def own_rows(gathered: tf.Tensor, like: tf.Tensor, group: Communicator, name: Name) -> tf.Tensor:
    """This rank's part of a tensor that has the rows of all, of which this rank has as many as `like`."""
    start = first_row(like, group, name)
    return gathered[start : start + tf.shape(like, out_type=tf.int64)[0]]


def first_row(tensor: tf.Tensor, group: Communicator, name: Name) -> tf.Tensor:
    """How many rows of such a tensor the ranks before this one have, a scalar of int64. Costs one all-gather of it."""
    counts = group.all_gather(tf.shape(tensor, out_type=tf.int64)[:1], name("rows"))
    return kept(tf.reduce_sum(counts[: group.rank]), counts)


def kept(result: tf.Tensor, collective: tf.Tensor) -> tf.Tensor:
    """`result`, which keeps a collective from being pruned on the ranks that do not use what it gives.

    TensorFlow drops operations without side effects that are only waited for, and Horovod's are such. So the result
    depends on a condition of the collective's values that never holds, which TensorFlow cannot know.

    Args:
        result: a tensor.
        collective: floats, or counts.
    """
    value = tf.math.real(collective)
    is_never = tf.math.is_nan(value) & tf.math.is_finite(value) if value.dtype.is_floating else value < 0
    return tf.where(tf.reduce_any(is_never), tf.ones_like(result), result)


def extreme(tensor: tf.Tensor, group: Communicator, op, name: Name) -> tf.Tensor:
    """The element-wise "min" or "max" over the ranks; those that have it share its gradient.

    Costs one all-reduce forward and two backward.
    """

    def forward(x):
        return group.all_reduce([x], name("reduce"), op)[0]

    @tf.custom_gradient
    def call(x):
        result = forward(x)

        def backward(upstream):
            has = tf.cast(tf.equal(x, result), x.dtype)
            [everything] = total([upstream], group, name)
            [owners] = group.all_reduce([has], name("reduce"))
            return everything * has / owners

        return result, backward

    return with_gradient(call, forward, [tensor])


def broadcast(tensor: tf.Tensor, group: Communicator, root_rank: int, name: Name) -> tf.Tensor:
    """The root's tensor, to which all ranks' gradients go. Costs one broadcast forward and one all-reduce backward."""

    def forward(x):
        return group.broadcast([x], name("broadcast"), root_rank)[0]

    @tf.custom_gradient
    def call(x):
        def backward(upstream):
            [everything] = total([upstream], group, name)
            return kept(everything if group.rank == root_rank else tf.zeros_like(everything), everything)

        return forward(x), backward

    return with_gradient(call, forward, [tensor])


def all_to_all(tensor: tf.Tensor, group: Communicator, name: Name) -> tf.Tensor:
    """The i-th of as many equal parts of dim 0 as there are ranks goes to rank i. Costs one all-to-all each way."""

    def forward(x):
        return tf.ensure_shape(group.all_to_all(x, name("all_to_all")), x.shape)

    @tf.custom_gradient
    def call(x):
        return forward(x), lambda upstream: all_to_all(upstream, group, name)

    return with_gradient(call, forward, [tensor])


def with_gradient(call: Callable, forward: Callable, tensors: Sequence[tf.Tensor]):
    """`call(*tensors)`, or `forward` where their type has no gradients."""
    is_differentiable = all(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in tensors)
    return call(*tensors) if is_differentiable else forward(*tensors)
