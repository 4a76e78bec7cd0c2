"""Takes single values out of JSON that anything may have been written into, so that all other code can trust them."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
MOST, MOST_CHARACTERS = 2**53, 2**16
HALVES = re.compile("[\ud800-\udfff]")  # of characters, which cannot be shown


class UnfitError(ValueError):
    """A value is not what it must be; the message is its field's path."""


class Fields:
    """The fields of an object of JSON's.

    Args:
        content: what should be one.
        path: of the object, with a dot behind it; empty for the outermost.

    Raises:
        UnfitError: it is none.
    """

    def __init__(self, content: Any, path: str):
        if not isinstance(content, dict):
            raise UnfitError(path)
        self._content, self._path = dict(content), path

    def take(self, name: str, kind: Callable[[Any], T]) -> T:
        """The value of a field, as `kind` has it, which raises ValueError for others.

        Raises:
            UnfitError: it is another, or missing.
        """
        try:
            return kind(self._content.pop(name))
        except UnfitError:
            raise
        except (KeyError, ValueError):
            raise UnfitError(self._path + name) from None

    def end(self) -> None:
        """Refuses fields that were not taken.

        Raises:
            UnfitError: there are some.
        """
        if self._content:
            raise UnfitError(self._path + next(iter(self._content))[:99])


def whole_number(value: Any) -> int:
    if type(value) is not int or abs(value) > 2**64:
        raise ValueError
    return value


def count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError
    return value


def number(value: Any) -> float:
    if type(value) is not float:
        return float(whole_number(value))
    return value


def text(value: Any) -> str:
    is_shown = isinstance(value, str) and len(value) <= MOST_CHARACTERS and not HALVES.search(value)
    if not is_shown:
        raise ValueError
    return value


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def size(value: Any) -> int:
    if count(value) == 0:
        raise ValueError
    return value


def one_of(*values: str) -> Callable[[Any], str]:
    """The kind of a text that is one of these."""

    def kind(value: Any) -> str:
        if value not in values:
            raise ValueError
        return value

    return kind


def list_of(kind: Callable[[Any], T], most: int = MOST) -> Callable[[Any], list[T]]:
    """The kind of a list whose members are of a kind."""

    def listed(value: Any) -> list[T]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError
        return [kind(each) for each in value]

    return listed


def or_none(kind: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """The kind of a value that is of a kind, or null."""
    return lambda value: None if value is None else kind(value)
