"""Finds the choices that take the fewest bytes: some fit where a search finds none, and they say where nothing fits."""

from collections.abc import Sequence

from keras_par.searching import dynamic
from keras_par.searching.maker import Maker
from keras_par.searching.within import bytes_of


def leanest_of(makers: Sequence[Maker]) -> list[list[int]]:
    """The choices that take the fewest bytes, as each problem adds them up; none if they cannot be found."""
    try:
        found = [dynamic.leanest(maker.problem) for maker in makers]
    except dynamic.EntangledError:
        return []
    return [choice for choice in found if choice is not None]


def bound(makers: Sequence[Maker], leanest: Sequence[list[int]]) -> float:
    """Bytes that a rank holds at least, by any choice: the fewest of the sums that are less than what it holds.

    Args:
        makers: of problems that add bytes up in the ways of `SUMS`.
        leanest: of each problem what takes the fewest bytes; empty if that is not known, and then the bound is 0.
    """
    lower = zip(makers[:-1], leanest[:-1], strict=bool(leanest))
    return max((bytes_of(maker.problem, choice) for maker, choice in lower), default=0.0)
