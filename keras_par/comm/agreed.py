"""Errors that all ranks raise together, so that none waits for another and none needs to be told."""

from collections.abc import Sequence

PLACES = {"kp.run": "fit, evaluate, predict or saving"}  # what users call the places where ranks meet


class AgreedError(Exception):
    """Mixed into errors that every rank raises together, so that none needs to be told by another."""


class AgreedValueError(AgreedError, ValueError):
    """A ValueError that all ranks raise together."""


class AgreedRuntimeError(AgreedError, RuntimeError):
    """A RuntimeError that all ranks raise together."""


def require_one_place(names: Sequence[str]) -> None:
    """Refuses ranks that have come to different places, in each of which they would wait for the others.

    Raises:
        AgreedValueError: `names`, which are the same list on all ranks, are not all the same.
    """
    other = next((rank for rank, name in enumerate(names) if name != names[0]), None)
    if other is not None:
        here, there = (PLACES.get(name) or f"'{name}'" for name in (names[0], names[other]))
        raise AgreedValueError(
            f"keras-par: rank 0 has come to {here} and rank {other} to {there}: let all ranks make the same calls in "
            "the same order, under the same strategy."
        )
