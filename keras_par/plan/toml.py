"""Reads TOML that anybody may have written: what is wrong with it is one kind of error, told by line, with advice."""

import difflib
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def loads(text: str) -> dict[str, Any]:
    """What the text says.

    Raises:
        tomllib.TOMLDecodeError: it is no TOML, or more than Python can read of it.
    """
    try:
        content = tomllib.loads(text)
        require_short_numbers(content)
        return content
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except ValueError as error:  # a number that is too long
        raise tomllib.TOMLDecodeError(str(error)) from None


def require_short_numbers(value: Any) -> None:
    """Refuses whole numbers of more than 64 bits, which TOML does not have and Python may not show.

    Raises:
        ValueError: there is one.
    """
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            require_short_numbers(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number has more than 64 bits")


def read(path: Path) -> str:
    """The text of a file.

    Raises:
        OSError: it cannot be read.
        tomllib.TOMLDecodeError: it is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise tomllib.TOMLDecodeError("it is no text in UTF-8") from None


# What may hold a bracket, an equals sign or a line's end without meaning it, and those themselves.
TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}=\n]', re.DOTALL
)
Key = tuple[str, ...]


def lines_of_keys(text: str) -> dict[Key, int]:
    """The line, from 1, of each table and of each key, named from the outermost table on.

    Args:
        text: valid TOML. Keys within inline tables are left out; they stand in the lines of the key they are given to.
    """
    found: dict[Key, int] = {}
    table: Key = ()
    begin, line, depth, equals, end = 0, 1, 0, None, None
    for token in [*TOKEN.finditer(text), None]:
        mark = "\n" if token is None else token[0]
        place = len(text) if token is None else token.start()
        if mark in ("[", "{"):
            depth += 1
        elif mark in ("]", "}"):
            depth -= 1
        elif mark == "=" and equals is None:
            equals = place
        elif mark.startswith("#") and depth == 0:
            end = place
        elif mark == "\n" and depth == 0:
            stop = next(p for p in (equals, end, place) if p is not None)
            name = text[begin:stop].strip()
            if equals is not None:
                found.setdefault((*table, *parts(name)), line)
            elif name:
                table = parts(name.strip("[]"))
                found.setdefault(table, line)
            line += text.count("\n", begin, place + 1)
            begin, equals, end = place + 1, None, None
    return found


def parts(key: str) -> Key:
    """The names of which a dotted or quoted key is made."""
    names: list[str] = []
    value = tomllib.loads(f"{key} = 0")
    while isinstance(value, dict):
        [(name, value)] = value.items()
        names.append(name)
    return tuple(names)


def line_of(key: Key, lines: dict[Key, int]) -> int:
    """The line of a key, else of the innermost table around it that has one, else the first."""
    known = next((key[:length] for length in range(len(key), 0, -1) if key[:length] in lines), None)
    return 1 if known is None else lines[known]


def instead(given: Any, known: Sequence) -> str:
    """What to write instead of `given`."""
    names = [shown(value) for value in known]
    alike = difflib.get_close_matches(str(given).lower(), [str(value).lower() for value in known], 1)
    if alike:
        return f"the nearest is {names[[str(value).lower() for value in known].index(alike[0])]}: correct it"
    return f"use {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f"use {names[0]}"


def shown(value: Any) -> str:
    """A value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
