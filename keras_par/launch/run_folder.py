"""The folder of one run: what was started, and what happened, as `keras-par report` reads it."""

import errno
import itertools
import json
import time
from pathlib import Path
from typing import Any

VERSION = 1
ABOUT = "run.json"
LOG = "log"  # of a job in the background, which is there before the job


class RunFolder:
    """Writes `run.json` and `events.jsonl`; without a folder, or where that cannot be written, it only counts.

    A folder that is there already is renamed, so that old runs are not mixed with new ones.

    Args:
        path: of the folder, None for no files.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, path: Path | None):
        self.path = None if path is None else path.absolute()
        self.complaint: str | None = None  # why nothing is written any more
        self.attempt = 0
        self._about: dict[str, Any] = {"version": VERSION}
        if self.path is not None:
            begin(self.path)

    def describe(self, **content: Any) -> None:
        """Adds to what `run.json` says about what was started."""
        self._about |= content
        self._write(ABOUT, "w", self._about)

    def event(self, kind: str, text: str, rank: int | None = None, **content: Any) -> None:
        """Appends what happened to `events.jsonl`."""
        about = {"time": time.time(), "attempt": self.attempt, "event": kind, "rank": rank, "text": text}
        self._write("events.jsonl", "a", {**about, **content})

    def _write(self, name: str, mode: str, content: dict[str, Any]) -> None:
        if self.path is None or self.complaint:
            return
        try:
            with (self.path / name).open(mode) as file:
                file.write(json.dumps(content) + "\n")
        except OSError as error:
            self.complaint = f"'{self.path / name}' cannot be written any more ({error.strerror})"


def begin(path: Path) -> Path:
    """Makes a folder for a run; that of an older run is renamed to its name with the first free number behind it.

    Raises:
        OSError: it cannot be made, or holds something else.
    """
    names = [each.name for each in path.iterdir()] if path.is_dir() else []
    if ABOUT not in names and any(name != LOG for name in names):
        raise OSError(errno.ENOTEMPTY, "it is a folder with other things in it than a run's", str(path))
    if ABOUT in names:
        older = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
        path.rename(next(each for each in older if not each.exists()))
    path.mkdir(parents=True, exist_ok=True)
    return path
