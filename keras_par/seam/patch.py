"""Replaces one function of Keras by a wrapper around it, once."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces `owner.name` by `make(owner.name)`; does nothing if that was done before."""
    original = getattr(owner, name)
    if getattr(original, "_keras_par", False):
        return
    replacement: Any = functools.wraps(original)(make(original))
    replacement._keras_par = True
    setattr(owner, name, replacement)


def wrap_property(owner: type, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces the getter of the property `owner.name` by `make(getter)`; does nothing if that was done before."""
    getter = vars(owner)[name].fget
    if getattr(getter, "_keras_par", False):
        return
    replacement: Any = functools.wraps(getter)(make(getter))
    replacement._keras_par = True
    setattr(owner, name, property(replacement))
