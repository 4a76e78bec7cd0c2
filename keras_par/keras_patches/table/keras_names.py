"""Finds Keras's private names, some of which have moved from one version to the next."""

import pkgutil
from typing import Any

import keras

from keras_par.keras_patches.table.uses import MOVES


def find(target: str) -> Any:
    """What this Keras has under a name of the table.

    Args:
        target: "module:name", or a module, as the table has it.

    Raises:
        ImportError, AttributeError: this Keras has no such name.
    """
    return pkgutil.resolve_name(located(target))


def located(target: str) -> str:
    """The name in this Keras of what the table calls `target`."""
    for move in MOVES:
        is_there = target == move.before or target.startswith((f"{move.before}.", f"{move.before}:"))
        if is_there and has(move.since):
            return move.now + target.removeprefix(move.before)
    return target


def has(since: str, until: str = "") -> bool:
    """True if this Keras is of version `since` or newer, and older than `until`."""
    known = version(keras.__version__)
    return version(since) <= known and not (until and known >= version(until))


def version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in [*text.split("."), "0"][:2])
