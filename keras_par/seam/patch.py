"""Replaces functions of Keras and TensorFlow by wrappers around them, once, and puts them back."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

ABSENT = object()  # a class inherits what is replaced in it

_replaced: list[tuple[Any, str, Any]] = []  # (class or module, name, what was there), in the order of replacing


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts `value` in the place of `owner.name`, until `restore` if the owner is a class or a module."""
    if isinstance(owner, (type, ModuleType)):
        _replaced.append((owner, name, vars(owner).get(name, ABSENT)))
    setattr(owner, name, value)


def restore() -> None:
    """Puts back whatever was replaced in classes and modules."""
    while _replaced:
        owner, name, before = _replaced.pop()
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces `owner.name` by `make(owner.name)`; does nothing if that was done before.

    Several may wrap the same function; the last one is the outermost.
    """
    original = getattr(owner, name)
    if not is_wrapped(original, make):
        replace(owner, name, marked(original, make))


def wrap_property(owner: type, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces the getter of the property `owner.name` by `make(getter)`; does nothing if that was done before."""
    getter = vars(owner)[name].fget
    if not is_wrapped(getter, make):
        replace(owner, name, property(marked(getter, make)))


def is_wrapped(function: Any, make: Callable) -> bool:
    """True if `make` made `function`, or one that it wraps."""
    while function is not None:
        if getattr(function, "_keras_par", None) == full_name(make):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def marked(original: Callable, make: Callable[[Callable], Callable]) -> Callable:
    replacement: Any = functools.wraps(original)(make(original))
    replacement._keras_par = full_name(make)
    return replacement


def full_name(make: Any) -> str:
    function = getattr(make, "func", make)  # of a partial
    return f"{function.__module__}.{function.__qualname__}"
