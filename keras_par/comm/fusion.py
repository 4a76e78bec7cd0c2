"""Several tensors as one message: their elements end to end, what comes back apart again, and sums of 16 bits."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from keras_par.comm.communicator import Communicator
from keras_par.comm.differentiable import with_gradient
from keras_par.plan.layout import length_of


def fused(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The elements of tensors of one dtype, end to end."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return flat[0] if len(flat) == 1 else tf.concat(flat, 0)


def separated(flat: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors of the shapes of others, from their elements end to end.

    Args:
        flat: as `fused` gives it.
        like: tensors of the shapes that are wanted.
    """
    pieces = [flat] if len(like) == 1 else tf.split(flat, [tf.size(tensor) for tensor in like])
    return [
        tf.ensure_shape(tf.reshape(piece, tf.shape(tensor)), tensor.shape)
        for piece, tensor in zip(pieces, like, strict=True)
    ]


def gathered(tensors: Sequence[tf.Tensor], gather: Callable[[tf.Tensor], Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """Rows of all ranks, those of all tensors of a dtype as one message.

    Args:
        tensors: of shapes that all ranks have.
        gather: makes of this rank's elements those of each rank, in the order of the ranks; called once for each dtype.
    """
    found: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        own = [tensors[i] for i in places]
        of_ranks = [separated(each, own) for each in gather(fused(own))]
        found |= {i: tf.concat(rows, 0) for i, rows in zip(places, zip(*of_ranks, strict=True), strict=True)}
    return [found[i] for i in range(len(tensors))]


def parts_of_ranks(tensors: Sequence[tf.Tensor], size: int) -> list[tuple[tf.Tensor, ...]]:
    """For each of `size` ranks its rows of tensors, of whose sums a reduce-scatter gives it those."""
    lengths = [[length_of(tensor.shape[0], size, rank) for rank in range(size)] for tensor in tensors]
    return list(zip(*(tf.split(*each) for each in zip(tensors, lengths, strict=True)), strict=True))


def sum_as_bfloat16(communicator: Communicator, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sums in float32 what is sent as bfloat16, so that only what is sent and the results are rounded.

    An all-to-all hands each rank one part of every rank's flat tensors, which it sums; an all-gather returns the
    sums. Together they send the 2 (N - 1) / N bytes per byte of a ring all-reduce.
    """

    @tf.custom_gradient
    def call(*given):
        return summed(communicator, given, name), lambda *upstream: sum_as_bfloat16(
            communicator, upstream, f"{name}.gradient"
        )

    return list(with_gradient(call, lambda *given: summed(communicator, given, name), tensors))


def summed(communicator: Communicator, tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """What `sum_as_bfloat16` computes, without a gradient."""
    size, flat = communicator.size, fused(tensors)
    length = tf.size(flat)
    part = (length + size - 1) // size
    sent = tf.cast(tf.pad(flat, [[0, part * size - length]]), tf.bfloat16)
    parts = communicator.all_to_all(tf.bitcast(sent, tf.uint16), f"{name}.scatter")
    parts = tf.bitcast(tf.reshape(parts, [size, part]), tf.bfloat16)
    total = tf.cast(tf.reduce_sum(tf.cast(parts, tf.float32), 0), tf.bfloat16)
    gathered = communicator.all_gather(tf.bitcast(total, tf.uint16), f"{name}.gather")
    return separated(tf.cast(tf.bitcast(gathered, tf.bfloat16), tensors[0].dtype)[:length], tensors)
