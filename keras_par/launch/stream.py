"""Writes to a stream that may be closed or that nobody reads any more."""

import contextlib
import os
from typing import TextIO


def write(stream: TextIO | None, text: str) -> None:
    """Writes and flushes; what nobody can read any more is dropped."""
    if stream is None or stream.closed:
        return
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
