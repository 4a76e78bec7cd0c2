"""How much a rank holds at a time: in the backward pass gradients come, and what was kept for them goes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Moment:
    """The backward pass of one operation.

    Args:
        block: the layer that is computed once more before it, else "".
        kept: bytes that this operation is the first to keep, which go after it.
        passing: that are taken while it is under way.
        gradients: of variables that no later operation reads, whose gradients begin here.
        sums: that these take while they are summed, each by itself.
        shared: that these give to messages that they share.
    """

    block: str = ""
    kept: int = 0
    passing: int = 0
    gradients: int = 0
    sums: int = 0
    shared: int = 0


def most_held(moments: Sequence[Moment], again: dict[str, int], bucket_bytes: int) -> dict[str, int]:
    """The parts of what is held when that is most, in bytes.

    Args:
        moments: of all operations, in the order of the forward pass.
        again: what layers that are computed once more take, by their names.
        bucket_bytes: of a message.
    """
    gradients = sums = shared = 0
    activations = sum(moment.kept for moment in moments)
    most: dict[str, int] = {}
    for moment in reversed(moments):
        gradients += moment.gradients
        sums += moment.sums
        shared += moment.shared
        held = {"activations": activations, "recomputed": again.get(moment.block, 0), "passing": moment.passing}
        held |= {"gradients": gradients, "sums": sums + min(shared, bucket_bytes)}
        most = max(most, held, key=lambda each: sum(each.values()))
        activations -= moment.kept
    return most
