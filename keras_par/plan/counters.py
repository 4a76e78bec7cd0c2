"""Where in a stream of counted random numbers an element lies, because a rank draws its rows without the rest."""

from typing import NamedTuple

# The Philox generator makes blocks of 4 numbers of 32 bits. TensorFlow's CPU kernels give a group of elements a fixed
# run of blocks, whatever the shape: https://github.com/tensorflow/tensorflow core/kernels/random_op_cpu.h.
WORDS = 4
RESERVED = 64  # blocks for each element of a distribution that may reject what it drew, such as a truncated normal's


class Stream(NamedTuple):
    """How the elements of a draw follow one another: `group` at a time, each group in `blocks` blocks."""

    group: int
    blocks: int


def stream(bits: int, rejects: bool) -> Stream:
    """The stream of a distribution whose elements have `bits` bits, and which may reject what it drew."""
    group = WORDS * 32 // bits if bits > 32 else WORDS
    return Stream(group, RESERVED * group if rejects else 1)


def seek(first, stream: Stream):
    """For element `first` of a draw: the block at which its group begins, and how many elements come before it there.

    Works on ints and on integer tensors alike.
    """
    return first // stream.group * stream.blocks, first % stream.group
