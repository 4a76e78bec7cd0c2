"""Counts which seconds of a job were of use in the end, over all worlds that it went through."""

import time
from dataclasses import dataclass


@dataclass
class World:
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
    """The worlds of a job, of which the last is the one that runs; before the first stands one that did nothing."""

    def __init__(self):
        self._began = time.time()
        self._worlds = [World()]
        self._checkpoints: dict[str, tuple[int, float, int]] = {}  # by name: the world, when and after how many steps
        self._has_resumed = False

    @property
    def has_begun(self) -> bool:
        """True once there was a world."""
        return len(self._worlds) > 1

    @property
    def has_checkpoint(self) -> bool:
        """True once there is one to go on from."""
        return bool(self._checkpoints)

    @property
    def has_advanced(self) -> bool:
        """True if the newest world has written a checkpoint."""
        return any(number == len(self._worlds) - 1 for number, _, _ in self._checkpoints.values())

    def begin(self) -> None:
        """Another world begins."""
        self._worlds.append(World())
        self._has_resumed = False

    def note_first_step(self, when: float) -> None:
        """The world's first step is done. One that has not gone on from a checkpoint did everything anew."""
        world = self._worlds[-1]
        if not world.since:
            world.since = world.until = when
            if not self._has_resumed:
                self.note_resume("")

    def note_steps(self, steps: int, when: float) -> None:
        """A rank has begun so many steps."""
        world = self._worlds[-1]
        if steps > world.steps:
            world.steps, world.until = steps, max(when, world.until)

    def note_checkpoint(self, name: str, taken: float, steps: int) -> None:
        """A checkpoint is complete, whose state was copied then."""
        self._checkpoints[name] = (len(self._worlds) - 1, taken, steps)

    def note_resume(self, name: str) -> int:
        """The world goes on from a checkpoint; returns how many steps since then are done again."""
        self._has_resumed = True
        number, taken, steps = self._checkpoints.get(name, (0, 0.0, 0))
        before = sum(world.steps for world in self._worlds[number:-1])
        for world in self._worlds[number + 1 : -1]:
            world.until, world.steps = 0.0, 0
        last = self._worlds[number]
        last.until, last.steps = min(taken, last.until), min(steps, last.steps)
        return before - last.steps

    def trained_seconds(self) -> float:
        """From each world's first step to its last that counts, as far as is known."""
        return sum(max(0.0, world.until - world.since) for world in self._worlds if world.since)

    def trained_share(self) -> float:
        """Of the job's time until now, the share in which steps were done that count: its ETTR."""
        return self.trained_seconds() / max(time.time() - self._began, 1e-9)
