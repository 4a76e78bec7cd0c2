"""Shows the ranks' output line by line, and the launcher's own words; a closed terminal ends neither."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TextIO


class Console:
    """Standard output and error of the launcher.

    Args:
        num_ranks: of the job; with one rank its lines have no prefix.
    """

    def __init__(self, num_ranks: int):
        self._width = len(str(num_ranks - 1))
        self._has_prefix = num_ranks > 1

    def output(self, rank: int, stream: str, text: str) -> None:
        """Prints lines of a rank, each behind its number."""
        prefix = f"[{rank:>{self._width}}] " if self._has_prefix else ""
        lines = text.splitlines()
        write(sys.stdout if stream == "stdout" else sys.stderr, "".join(f"{prefix}{line}\n" for line in lines))

    def say(self, text: str) -> None:
        """Prints a sentence of the launcher's own to standard error."""
        write(sys.stderr, f"keras-par: {text}\n")

    def panel(self, title: str, lines: Sequence[str], stacks: dict[int, str] | None = None) -> None:
        """Prints sentences and ranks' stacks to standard error, between two rules, so that paths can be copied."""
        if sys.stderr is None:
            return
        from rich.console import Console as RichConsole
        from rich.rule import Rule
        from rich.text import Text

        console = RichConsole(stderr=True, highlight=False)
        with contextlib.suppress(OSError, ValueError):
            console.print(Rule(f"[bold]{title}", align="left", style="red"))
            for line in lines:
                console.print(Text(line), soft_wrap=True)
            for rank, stack in (stacks or {}).items():
                console.print(Text(f"Stack of rank {rank}, innermost call first:", style="bold"))
                console.print(Text(stack), soft_wrap=True)
            console.print(Rule(style="red"))


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
