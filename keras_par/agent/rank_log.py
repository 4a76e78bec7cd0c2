"""Writes a rank's output and progress to its folder; a disk that is full costs the log, not the job."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MOST_LINES = 600  # in the time from a run's begin to twice as long; later lines are rarer


class RankLog:
    """The files of one rank: `stdout`, `stderr`, `progress.jsonl`, `epochs.jsonl`.

    Args:
        folder: of the rank; made if it is not there.
        attempt: how often the job was restarted; later attempts append.
        complain: is given one sentence when a file cannot be written any more.
        every: seconds between two lines of progress, at first.
    """

    def __init__(self, folder: Path, attempt: int, complain: Callable[[str], None], every: float):
        self._folder, self._attempt, self._complain, self._every = folder, attempt, complain, every
        self._files: dict[str, BinaryIO | None] = {}
        for name in ("stdout", "stderr"):
            self._files[name] = self._open(name)
        self._began, self._written = time.monotonic(), -every

    def path(self, name: str) -> Path:
        return self._folder / name

    def write(self, name: str, data: bytes) -> bool:
        """Appends to a file; False if it could not write all of it, now or before."""
        if name not in self._files:
            self._files[name] = self._open(name)
        file = self._files[name]
        if file is None:
            return False
        try:
            while data:
                data = data[file.write(data) :]
            return True
        except OSError as error:
            self._give_up(name, error)
            return False

    def note(self, name: str, content: dict[str, Any]) -> None:
        """Appends one line of JSON."""
        self.write(name, json.dumps({"attempt": self._attempt, **content}).encode() + b"\n")

    def progress(self, content: dict[str, Any], is_last: bool = False) -> None:
        """Appends a line of progress, if one is due: each second at first, each six seconds after an hour."""
        now = time.monotonic()
        due = max(self._every, (now - self._began) / MOST_LINES)
        if is_last or now - self._written >= 0.9 * due:
            self._written = now
            self.note("progress.jsonl", content)

    def _open(self, name: str) -> BinaryIO | None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return self.path(name).open("ab", buffering=0)
        except OSError as error:
            self._give_up(name, error)
            return None

    def _give_up(self, name: str, error: OSError) -> None:
        self._files[name] = None
        self._complain(f"'{self.path(name)}' cannot be written any more ({error.strerror}): the job goes on without it")
