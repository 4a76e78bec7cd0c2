"""Draws what ProgressBar knows: a bar on a terminal, plain lines elsewhere."""

import operator
import os
import sys
import time
import weakref
from dataclasses import dataclass

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

MOST_RANKS = 8  # whose times are all shown
REDRAW_SECONDS = 0.1


@dataclass(frozen=True)
class Span:
    """Some steps that lie behind: how many, of how many rows, and each rank's seconds, in all and in collectives."""

    steps: int
    rows: int
    seconds: np.ndarray
    collective: np.ndarray

    def __add__(self, other: "Span") -> "Span":
        return Span(*map(operator.add, vars(self).values(), vars(other).values()))

    def words(self) -> list[str]:
        """Rows a second, the share of collectives, and the ranks' own seconds a step, the slowest rank first."""
        if self.steps == 0 or self.seconds.sum() == 0:
            return []
        speed = f"{self.rows / self.seconds.max():.0f} rows/s"
        own = (self.seconds - self.collective) / self.steps
        if len(own) == 1:
            return [speed, f"{duration(own[0])} a step"]
        order = np.argsort(-own, kind="stable")
        others = order[1:] if len(order) <= MOST_RANKS else order[-1:]
        return [
            speed,
            f"{self.collective.sum() / self.seconds.sum():.0%} in collectives",
            f"slowest rank {order[0]}: {duration(own[order[0]])} a step",
            *(f"{'' if len(others) > 1 or len(own) == 2 else 'fastest '}rank {r}: {duration(own[r])}" for r in others),
        ]


NO_STEPS = Span(0, 0, np.zeros(1), np.zeros(1))


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def values(logs: dict) -> list[str]:
    """The numbers of Keras's logs, which may be scalar tensors, each with its name; the loss first."""
    arrays = {name: np.asarray(logs[name]) for name in sorted(logs, key=lambda name: (name != "loss", name))}
    numbers = {name: array for name, array in arrays.items() if array.shape == () and array.dtype.kind in "iuf"}
    return [f"{name} {float(number):.4g}" for name, number in numbers.items()]


def terminal_width() -> int | None:
    """Columns of the terminal that shows standard output, None if none does.

    mpirun gives its ranks a pseudo-terminal of no size whatever its own output goes to, so there it is asked.
    """
    try:
        if not sys.stdout.isatty():
            return None
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
        if columns:
            return columns
        with open(f"/proc/{os.getppid()}/fd/1") as parent:
            return os.get_terminal_size(parent.fileno()).columns or None
    except (OSError, ValueError):
        return None


class View:
    """What rank 0 shows of one call of `fit`.

    Args:
        bar: True draws a bar, False prints lines.
        width: columns of the terminal, None if that is not known.
        every_seconds: time from one line to the next.
        num_epochs: how many epochs there will be, None if that is not known.
        num_steps: how many steps an epoch has, None if that is not known.
    """

    def __init__(
        self, bar: bool, width: int | None, every_seconds: float, num_epochs: int | None, num_steps: int | None
    ):
        self._every_seconds, self._num_epochs, self._num_steps = every_seconds, num_epochs, num_steps
        self._live: Live | None = None
        self._epoch = ""
        self._printed = self._drawn = time.monotonic()
        if bar:
            console = Console(file=sys.stdout, force_terminal=True, width=width)
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=console, auto_refresh=False)
            self._task, self._figures = self._progress.add_task("", total=num_steps, visible=False), Text()
            self._live = Live(Group(self._progress, self._figures), console=console, auto_refresh=False)
            self._live.start()
            weakref.finalize(self, self._live.stop)  # an error in fit must not leave the terminal without a cursor

    def begin(self, epoch: int) -> None:
        """Starts an epoch, counted from 0."""
        self._epoch = f"epoch {epoch + 1}" + (f"/{self._num_epochs}" if self._num_epochs else "")
        if self._live:
            self._progress.reset(self._task, description=self._epoch, visible=True)

    def advance(self, step: int) -> None:
        """Notes that a step is done, and redraws a bar that was not drawn lately."""
        if self._live:
            self._progress.update(self._task, completed=step)
            if time.monotonic() - self._drawn >= REDRAW_SECONDS:
                self._drawn = time.monotonic()
                self._live.refresh()

    def show(self, step: int, logs: dict, span: Span) -> None:
        """Shows new figures, or prints them if it is time to."""
        words = [*values(logs), *span.words()]
        if self._live:
            self._figures.plain = ", ".join(words)
            self._drawn = 0.0
            self.advance(step)
        elif span.steps and step != self._num_steps and time.monotonic() - self._printed >= 0.9 * self._every_seconds:
            self._print(step, words)

    def end(self, step: int, logs: dict, num_rows: int, span: Span) -> None:
        """Prints the line of an epoch."""
        self.advance(step)
        self._print(step, [*values(logs), f"{num_rows} rows", *span.words()])

    def close(self) -> None:
        """Leaves the terminal as it was."""
        if self._live:
            self._live.stop()

    def _print(self, step: int, words: list[str]) -> None:
        self._printed = time.monotonic()
        total = f"/{self._num_steps}" if self._num_steps else ""
        print(f"{self._epoch} step {step}{total}: {', '.join(words)}", flush=True)  # which a bar puts above itself
