"""Replaces functions of Keras and TensorFlow by wrappers around them, once, and puts them back."""

import functools
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from keras_par.keras_patches.table.replacements import Patch
from keras_par.keras_patches.table.uses import find, has

ABSENT = object()  # a class inherits what is replaced in it

_replaced: list[tuple[Any, str, Any]] = []  # (class or module, name, what was there), in the order of replacing


def apply(patch: Patch) -> None:
    """Makes one replacement of the table, unless this Keras is older or newer than what it replaces."""
    if not has(patch.since, patch.until):
        return
    path, _, name = patch.target.rpartition("." if "." in patch.target.partition(":")[2] else ":")
    owner, by = find(path), pkgutil.resolve_name(f"keras_par.keras_patches.{patch.by}")
    before = getattr(owner, name, None)  # of the devices' functions some are new
    if patch.instead:
        replace(owner, name, by)
    else:
        wrap(owner, name, by)
    if patch.everywhere:
        replace_imported(name, before, getattr(owner, name))


def replace_imported(name: str, before: Any, now: Any) -> None:
    """Replaces what modules have imported under its name, or the one that it was defined by."""
    for module in list(sys.modules.values()):
        for known in {name, getattr(before, "__name__", name)}:
            if getattr(module, "__dict__", {}).get(known) is before:
                replace(module, known, now)


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts `value` in the place of `owner.name`, a class's or a module's, until `restore`."""
    _replaced.append((owner, name, vars(owner).get(name, ABSENT)))
    setattr(owner, name, value)


def restore() -> None:
    """Puts back whatever was replaced."""
    while _replaced:
        owner, name, before = _replaced.pop()
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces `owner.name`, or a property's getter, by `make` of it; does nothing if that was done before.

    Several may wrap the same function; the last one is the outermost.
    """
    own = vars(owner).get(name)
    original: Any = own.fget if isinstance(own, property) else getattr(owner, name)
    if not is_wrapped(original, make):
        made = marked(original, make)
        replace(owner, name, property(made) if isinstance(own, property) else made)


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
