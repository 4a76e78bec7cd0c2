"""Takes single values out of JSON that anything may have been written into, so that all other code can trust them."""

import math
import re
from typing import Any

LARGEST, LATEST = 1e15, 9.5e10
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def number(value: Any) -> float:
    """`value` as a float from 0 to 1e15; raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise ValueError(f"{value!r} is no number from 0 to {LARGEST:g}")
    return float(value)


def moment(value: Any) -> float:
    """`value` as unix seconds before the year 5000; raises ValueError for anything else."""
    found = number(value)
    if found > LATEST:
        raise ValueError(f"{value!r} is no time")
    return found


def count(value: Any) -> int:
    """`value` as an int from 0 to 1e15; raises ValueError for anything else."""
    found = number(value)
    if found != int(found):
        raise ValueError(f"{value!r} is no whole number")
    return int(found)


def figure(value: Any) -> float:
    """`value` as a float of any sign, which may be nan; raises ValueError for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def text(value: Any) -> str:
    """`value` as text that a page can show: without terminal colours, control characters and halves of characters."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return CONTROL.sub("", value.replace("\r\n", "\n")).encode(errors="replace").decode()


def is_plottable(value: float) -> bool:
    """True for what a chart can show, which is neither nan nor astronomically large."""
    return math.isfinite(value) and abs(value) < 1e30
