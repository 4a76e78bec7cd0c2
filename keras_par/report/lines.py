"""Reads JSON objects, one a line, from files of which a kill may have cut the last line and a full disk any."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from keras_par.base.regular_file import opened

T = TypeVar("T")
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


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
