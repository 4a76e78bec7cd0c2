"""Keeps the ranks' progress bars to one line of the terminal, and to few lines of anything else."""

import contextlib
import os
import re
import time
from collections.abc import Callable
from typing import TextIO

from keras_par.agent.terminal_filter import CODES, without_codes

LINE_SECONDS = 30.0  # between two lines of a bar that is not done, where there is no terminal
ERASE, RESET = "\r\x1b[K", "\x1b[0m"


class Bars:
    """The lines that ranks are overwriting; only the console's thread uses it."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[TextIO, str]] = {}  # of each rank that has one on a terminal
        self._printed: dict[int, float] = {}  # when a rank's was printed elsewhere
        self._drawn: TextIO | None = None  # where the bar is that can be seen now

    def show(self, rank: int, stream: TextIO | None, text: str, is_done: bool) -> None:
        """Takes in what a rank's bar is now."""
        if stream is None or stream.closed:
            return
        if not stream.isatty():
            now = time.monotonic()
            if is_done or now - self._printed.setdefault(rank, now) >= LINE_SECONDS:
                self._printed[rank] = now
                write(stream, without_codes(text) + "\n")
        elif is_done:
            self._begun.pop(rank, None)
            self.beside(lambda: write(stream, f"{text}{RESET}\n"))
        else:
            self._begun[rank] = (stream, text)
            self._draw()

    def beside(self, action: Callable[[], None]) -> None:
        """Erases the bar that can be seen, writes something else, and draws the bar again below."""
        if self._drawn is not None:
            write(self._drawn, ERASE)
            self._drawn = None
        action()
        self._draw()

    def leave(self) -> None:
        """Leaves the bar that can be seen as a line, and forgets all."""
        if self._drawn is not None:
            write(self._drawn, "\n")
        self._drawn, self._begun = None, {}

    def _draw(self) -> None:
        if self._begun:
            stream, text = self._begun[min(self._begun)]
            write(stream, f"{ERASE}{clipped(text, columns(stream) - 1)}{RESET}")
            self._drawn = stream


def columns(stream: TextIO) -> int:
    """The width of a terminal; 80 if it says none."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def clipped(text: str, width: int) -> str:
    """The begin of a text that takes so many columns; codes of colours take none."""
    shown, room = [], max(width, 0)
    for part in re.split(f"({CODES.pattern})", text):
        is_code = CODES.fullmatch(part) is not None
        shown.append(part if is_code else part[:room])
        room -= 0 if is_code else min(len(part), room)
    return "".join(shown)


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
