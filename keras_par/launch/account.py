"""Counts which steps and seconds of a job were of use in the end, over all worlds that it went through."""

import time
from dataclasses import dataclass, field


@dataclass
class World:
    """What one attempt has come to; times are seconds since 1970.

    Args:
        trains_since: when its first step was done, None before.
        steps: that it has done, and that count as far as is known.
        trained_until: when the last of these was done.
        checkpoints: by their names when their state was copied, and after how many steps.
    """

    trains_since: float | None = None
    steps: int = 0
    trained_until: float = 0.0
    checkpoints: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From its first step to the last that counts."""
        return 0.0 if self.trains_since is None else max(0.0, self.trained_until - self.trains_since)

    def cut(self, until: float, steps: int) -> int:
        """Lets nothing count that came after that; returns how many steps these were."""
        lost, self.steps = max(0, self.steps - steps), min(steps, self.steps)
        self.trained_until = min(until, self.trained_until)
        return lost


class Account:
    """The worlds of a job, of which the last is the one that runs."""

    def __init__(self):
        self._began = time.time()
        self._worlds: list[World] = []
        self._has_resumed = False
        self.num_steps_lost = 0

    @property
    def num_worlds(self) -> int:
        """How many there were until now."""
        return len(self._worlds)

    @property
    def has_checkpoint(self) -> bool:
        """True once there is one to go on from."""
        return any(world.checkpoints for world in self._worlds)

    @property
    def has_advanced(self) -> bool:
        """True if the newest world has written a checkpoint."""
        return bool(self._worlds and self._worlds[-1].checkpoints)

    def begin(self) -> None:
        """Another world begins."""
        self._worlds.append(World())
        self._has_resumed = False

    def note_first_step(self, when: float) -> None:
        """The world's first step is done. One that has not gone on from a checkpoint did everything anew."""
        world = self._worlds[-1]
        if world.trains_since is None:
            world.trains_since = world.trained_until = when
            if not self._has_resumed:
                self.note_resume("")

    def note_steps(self, steps: int, when: float) -> None:
        """A rank has begun so many steps."""
        world = self._worlds[-1]
        if steps > world.steps:
            world.steps, world.trained_until = steps, max(when, world.trained_until)

    def note_checkpoint(self, name: str, taken: float, steps: int) -> None:
        """A checkpoint is complete, whose state was copied then."""
        self._worlds[-1].checkpoints[name] = (taken, steps)

    def note_resume(self, name: str) -> int:
        """The world goes on from a checkpoint; returns how many steps since then are done again."""
        self._has_resumed = True
        lost = 0
        for world in reversed(self._worlds[:-1]):
            taken, steps = world.checkpoints.get(name, (0.0, 0))
            lost += world.cut(taken, steps)
            if name in world.checkpoints:
                break
        self.num_steps_lost += lost
        return lost

    def counted(self) -> dict[str, float]:
        """For each world the seconds that count, as far as is known."""
        return {str(number): round(world.seconds, 3) for number, world in enumerate(self._worlds)}

    def share(self) -> float:
        """Of the job's time until now, the share in which steps were done that count: its ETTR."""
        return sum(world.seconds for world in self._worlds) / max(time.time() - self._began, 1e-9)
