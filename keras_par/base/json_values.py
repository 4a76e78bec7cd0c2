"""Turns numbers and arrays that JSON does not know into what it does, so that they can be told to others."""

from typing import Any


def plain(value: Any) -> Any:
    """What JSON can carry in place of a number or array of NumPy's or TensorFlow's; of anything else, its text."""
    value = value.numpy() if hasattr(value, "numpy") else value
    return value.tolist() if hasattr(value, "tolist") else repr(value)
