"""Reads variables of the environment and other words that anybody may have set to anything."""

import os
from collections.abc import Mapping
from pathlib import Path

DIGITS = 9  # of the longest number


def one_line(text: str, most: int = 40) -> str:
    """A text as a sentence can show it, of a long one its begin."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown if len(shown) <= most else f"{shown[:most]}..."


def number(environ: Mapping[str, str], name: str, lowest: int, highest: int | None, advice: str) -> int | None:
    """The whole number in a variable, None if it is not set.

    Raises:
        RuntimeError: it is something else, or out of its range.
    """
    text = environ.get(name)
    if text is None:
        return None
    value = int(text) if text.isdecimal() and len(text) <= DIGITS else -1
    if value < lowest or (highest is not None and value > highest):
        span = f"of at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise RuntimeError(f"keras-par: {name}={text[:40]!r} is no whole number {span}: {advice}.")
    return value


def cache_folder() -> Path:
    """Where what was built for this machine is kept between environments.

    KERAS_PAR_CACHE, else keras-par/wheels in the user's cache folder (XDG_CACHE_HOME, ~/.cache).
    """
    if "KERAS_PAR_CACHE" in os.environ:
        return Path(os.environ["KERAS_PAR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "keras-par" / "wheels"
