"""How much a rank holds at a time: in the backward pass gradients come, and what was kept for them goes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass
class Moment:
    """The backward pass of one operation.

    Args:
        kept: bytes that this operation is the first to keep, which go after it.
        passing: that are taken while it is under way, and by gradients of tensors that wait for earlier operations.
        recomputed: that its layer takes, if it is computed once more.
        gradients: of variables that no later operation reads, whose gradients begin here.
        sums: that these take while they are summed, each by itself.
        shared: that these give to messages that they share.
    """

    kept: int = 0
    passing: int = 0
    recomputed: int = 0
    gradients: int = 0
    sums: int = 0
    shared: int = 0


def most_held(moments: Sequence[Moment], bucket_bytes: int) -> dict[str, int]:
    """The parts of what is held when that is most, in bytes.

    Args:
        moments: of all operations, in the order of the forward pass.
        bucket_bytes: of a message.
    """
    gradients = sums = shared = 0
    activations = sum(moment.kept for moment in moments)
    parts = []
    for moment in reversed(moments):
        gradients += moment.gradients
        sums += moment.sums
        shared += moment.shared
        held = {"activations": activations, "gradients": gradients, "sums": sums + min(shared, bucket_bytes)}
        parts.append({**held, "recomputed": moment.recomputed, "passing": moment.passing})
        activations -= moment.kept
    return max(parts, key=lambda held: sum(held.values()))


def waiting(flowing: Sequence[Mapping[int, int]]) -> list[int]:
    """For each operation the bytes of gradients that later ones have made and earlier ones want.

    Args:
        flowing: for each operation the tensors whose gradients it takes or gives, with their bytes.
    """
    changes, last = [0] * (len(flowing) + 1), dict[int, int]()
    for place, sizes in enumerate(flowing):
        for number, size in sizes.items():
            if number in last:
                changes[last[number] + 1] += size
                changes[place] -= size
            last[number] = place
    return list(accumulate(changes[:-1]))
