"""The folder of one run: what was started, and what happened, as `keras-par report` reads it."""

import contextlib
import errno
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_par.base.lock import Lock, TakenError, take

VERSION = 1
ABOUT = "run.json"
LOCK = "lock"
LOG = "log"  # of a job in the background, which is there before the job


class RunFolder:
    """Writes `run.json` and `events.jsonl`; without a folder, or where that cannot be written, it only counts.

    A folder that is there already is renamed, so that old runs are not mixed with new ones. If a job that goes on has
    it, this one gets a folder beside it, as torchrun gives each job its own.

    Args:
        path: of the folder, None for no files.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, path: Path | None):
        self.path: Path | None = None
        self.note: str | None = None  # that it is another folder than was asked for
        self.complaint: str | None = None  # why nothing is written any more
        self.attempt = 0
        self._about: dict[str, Any] = {"version": VERSION}
        if path is not None:
            self.path, self._lock, self.note = begin(path.absolute())

    def describe(self, **content: Any) -> None:
        """Adds to what `run.json` says about what was started."""
        self._about |= content
        self._write(ABOUT, "w", self._about)

    def event(self, kind: str, text: str, rank: int | None = None, **content: Any) -> None:
        """Appends what happened to `events.jsonl`."""
        about = {"time": time.time(), "attempt": self.attempt, "event": kind, "rank": rank, "text": text}
        self._write("events.jsonl", "a", {**about, **content})

    def close(self) -> None:
        """Lets the next job have the folder."""
        if self.path is not None:
            self._lock.give_back()

    def _write(self, name: str, mode: str, content: dict[str, Any]) -> None:
        if self.path is None or self.complaint:
            return
        try:
            with (self.path / name).open(mode) as file:
                file.write(json.dumps(content) + "\n")
        except OSError as error:
            self.complaint = f"'{self.path / name}' cannot be written any more ({error.strerror})"


def begin(path: Path) -> tuple[Path, Lock, str | None]:
    """Makes a folder for a run, and says in a sentence if it is another, because a job that goes on has this one.

    The folder of an older run is renamed to its name with the first free number behind it.

    Raises:
        OSError: it cannot be made, or holds something else.
    """
    while True:
        names = [each.name for each in path.iterdir()] if path.is_dir() else []
        if ABOUT not in names and any(name != LOG and not name.startswith(LOCK) for name in names):
            raise OSError(errno.ENOTEMPTY, "it is a folder with other things in it than a run's", str(path))
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = take(path / LOCK)
        except TakenError as owner:
            other = beside(path)
            complaint = f"'{path}' has the output of {owner}, which goes on: this job's goes to '{other}'"
            return other, take(other / LOCK), complaint
        if not (path / ABOUT).exists():
            return path, lock, None
        older = next(each for each in numbered(path) if not each.exists())
        path.rename(older)
        lock.give_back.detach()
        (older / LOCK).unlink(missing_ok=True)


def beside(path: Path) -> Path:
    """A new folder of this name with the first free number behind it."""
    for each in numbered(path):  # which do not end
        with contextlib.suppress(FileExistsError):
            each.mkdir()
            break
    return each


def numbered(path: Path) -> Iterator[Path]:
    return (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
