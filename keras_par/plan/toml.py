"""Reads TOML that anybody may have written: whatever is wrong with it is one kind of error."""

import tomllib
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
