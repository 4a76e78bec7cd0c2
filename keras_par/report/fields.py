"""Takes lines and values out of JSON that anything may have been written into, so that other code can trust them."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from keras_par.base.regular_file import opened

T = TypeVar("T")
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)
LARGEST, LATEST = 1e15, 9.5e10
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]")


def number(value: Any, most: float = LARGEST) -> float:
    """`value` as a float from 0 to `most`; raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"{value!r} is no number from 0 to {most:g}")
    return float(value)


def moment(value: Any) -> float:
    """`value` as unix seconds before the year 5000; raises ValueError for anything else."""
    return number(value, LATEST)


def count(value: Any, most: float = LARGEST) -> int:
    """`value` as an int from 0 to `most`; raises ValueError for anything else."""
    found = number(value, most)
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


def read_lines(path: Path, name: str, parse: Callable[[dict[str, Any]], T], notes: list[str]) -> Iterator[T]:
    """What `parse` makes of each line of `path`; appends to `notes` a sentence about what could not be read.

    A file that does not exist has no lines. `name` is what the sentences call it.
    """
    unreadable = 0
    try:
        with opened(path) as file:
            for line in file:
                try:
                    parsed = parse(json.loads(line))
                except UNREADABLE:
                    if not line.endswith(b"\n"):
                        notes.append(f"The last line of {name} is cut.")
                    elif line.strip():
                        unreadable += 1
                    continue
                yield parsed
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{name} could not be read ({error.strerror}).")
    if unreadable:
        lines = "1 line" if unreadable == 1 else f"{unreadable} lines"
        notes.append(f"{lines} of {name} could not be understood and {'is' if unreadable == 1 else 'are'} left out.")
