"""Counts which seconds of a job were of use in the end, over all attempts that it went through."""

import time
from dataclasses import dataclass


@dataclass
class Attempt:
    """What one attempt has come to.

    Args:
        since: when its first step was done, in seconds since 1970; 0 before.
        until: when the last step that counts was done.
        steps: that it has done, and that count as far as is known.
    """

    since: float = 0.0
    until: float = 0.0
    steps: int = 0


class Account:
    """The attempts of a job, of which the last is the one that runs; before the first stands one that did nothing."""

    def __init__(self):
        self._began = time.time()
        self._attempts = [Attempt()]
        self._checkpoints: dict[str, tuple[int, float, int]] = {}  # by name: the attempt, when and after how many steps
        self._has_resumed = False

    @property
    def has_begun(self) -> bool:
        """True once there was a attempt."""
        return len(self._attempts) > 1

    @property
    def has_checkpoint(self) -> bool:
        """True once there is one to go on from."""
        return bool(self._checkpoints)

    @property
    def has_advanced(self) -> bool:
        """True if the newest attempt has written a checkpoint."""
        return any(number == len(self._attempts) - 1 for number, _, _ in self._checkpoints.values())

    def begin(self) -> None:
        """Another attempt begins."""
        self._attempts.append(Attempt())
        self._has_resumed = False

    def note_first_step(self, when: float) -> None:
        """The attempt's first step is done. One that has not gone on from a checkpoint did everything anew."""
        attempt = self._attempts[-1]
        if not attempt.since:
            attempt.since = attempt.until = when
            if not self._has_resumed:
                self.note_resume("")

    def note_steps(self, steps: int, when: float) -> None:
        """A rank has begun so many steps."""
        attempt = self._attempts[-1]
        if steps > attempt.steps:
            attempt.steps, attempt.until = steps, max(when, attempt.until)

    def note_checkpoint(self, name: str, taken: float, steps: int) -> None:
        """A checkpoint is complete, whose state was copied then."""
        self._checkpoints[name] = (len(self._attempts) - 1, taken, steps)

    def note_resume(self, name: str) -> int:
        """The attempt goes on from a checkpoint; returns how many steps since then are done again."""
        self._has_resumed = True
        number, taken, steps = self._checkpoints.get(name, (0, 0.0, 0))
        before = sum(attempt.steps for attempt in self._attempts[number:-1])
        for attempt in self._attempts[number + 1 : -1]:
            attempt.until, attempt.steps = 0.0, 0
        last = self._attempts[number]
        last.until, last.steps = min(taken, last.until), min(steps, last.steps)
        return before - last.steps

    def trained_seconds(self) -> float:
        """From each attempt's first step to its last that counts, as far as is known."""
        return sum(max(0.0, attempt.until - attempt.since) for attempt in self._attempts if attempt.since)

    def trained_share(self) -> float:
        """Of the job's time until now, the share in which steps were done that count: its ETTR."""
        return self.trained_seconds() / max(time.time() - self._began, 1e-9)
