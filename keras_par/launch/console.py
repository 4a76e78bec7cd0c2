"""Shows the ranks' output and the launcher's own words, from a thread that alone waits for the terminal."""

import contextlib
import io
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from keras_par.agent.terminal_filter import CODES, without_codes

LIMIT = 2000  # pieces of output that wait to be shown, before those who have more must wait
CLOSE_SECONDS = 5.0  # for a terminal to take what is left
LINE_SECONDS = 30.0  # between two lines of a bar that is not done, where there is no terminal
ERASE, RESET = "\r\x1b[K", "\x1b[0m"


class Console:
    """Standard output and error of the launcher. A closed one is dropped, and one that nobody reads stops nobody else.

    A job of one rank has lines without a prefix.
    """

    def __init__(self):
        self._width, self._has_prefix = 1, False
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._bars = Bars()
        self._errors = [(each, each.errors) for each in (sys.stdout, sys.stderr) if isinstance(each, io.TextIOWrapper)]
        for stream, _ in self._errors:
            stream.reconfigure(errors="backslashreplace")
        self._thread = threading.Thread(target=self._show, name="kp-console", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """True while so much is waiting that ranks which have more to show must wait."""
        return len(self._waiting) >= LIMIT

    def expect(self, num_ranks: int) -> None:
        """Prepares for lines of so many ranks."""
        self._width = max(self._width, len(str(num_ranks - 1)))
        self._has_prefix = self._has_prefix or num_ranks > 1

    def output(self, rank: int, stream: str, text: str) -> None:
        """Prints lines of a rank, each behind its number."""
        prefix = self._prefix(rank)
        lines = "".join(f"{prefix}{line}\n" for line in text.splitlines())
        self._enter(lambda: self._bars.beside(lambda: write(getattr(sys, stream), lines)))

    def bar(self, rank: int, stream: str, text: str, is_done: bool) -> None:
        """Shows a line that a rank goes on to overwrite, or has overwritten for the last time.

        On a terminal there is one, the lowest rank's, which stays below all other output. Elsewhere it is printed once
        it is done, and twice a minute before.
        """
        if len(self._waiting) > LIMIT and not is_done:
            return  # nobody reads
        self._enter(lambda: self._bars.show(rank, getattr(sys, stream), f"{self._prefix(rank)}{text}", is_done))

    def say(self, text: str) -> None:
        """Prints a sentence of the launcher's own to standard error."""
        self._enter(lambda: self._bars.beside(lambda: write(sys.stderr, f"keras-par: {text}\n")))

    def panel(self, title: str, lines: Sequence[str], stacks: dict[int, str] | None = None) -> None:
        """Prints sentences and ranks' stacks to standard error, between two rules, so that paths can be copied."""
        self._enter(self._bars.leave)
        self._enter(lambda: show_panel(title, lines, stacks or {}))

    def close(self) -> bool:
        """Waits until all is shown, but not long for a terminal that nobody reads; False if that was in vain."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            for stream, errors in self._errors:
                stream.reconfigure(errors=errors)
        return not self._thread.is_alive()

    def _prefix(self, rank: int) -> str:
        return f"[{rank:>{self._width}}] " if self._has_prefix else ""

    def _enter(self, action: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.append(action)
            self._changed.notify_all()

    def _show(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return self._bars.leave()
                action = self._waiting.popleft()
                self._changed.notify_all()
            action()


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


def show_panel(title: str, lines: Sequence[str], stacks: dict[int, str]) -> None:
    if sys.stderr is None:
        return
    from rich.console import Console as RichConsole
    from rich.rule import Rule
    from rich.text import Text

    console = RichConsole(stderr=True, highlight=False, force_jupyter=False)
    with contextlib.suppress(OSError, ValueError):
        console.print(Rule(f"[bold]{title}", align="left", style="red"))
        for line in lines:
            console.print(Text(line), soft_wrap=True)
        for rank, stack in stacks.items():
            console.print(Text(f"Stack of rank {rank}, innermost call first:", style="bold"))
            console.print(Text(stack), soft_wrap=True)
        console.print(Rule(style="red"))
