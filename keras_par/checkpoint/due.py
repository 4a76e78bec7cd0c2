"""Says when a checkpoint is due, at the same step on every rank, by steps and by the clock of rank 0."""

import time

import tensorflow as tf

from keras_par.comm.communicator import Communicator


class Due:
    """Counts steps, and asks rank 0's clock about as often as needed.

    Args:
        every_steps: steps from one checkpoint to the next, None if steps do not matter.
        every_seconds: seconds from one to the next, None if the clock does not matter. Then rank 0 tells the others
            how many steps to do before they ask again, which costs one broadcast of a number each time: about
            twice as often as checkpoints are due, and more often as the moment comes near.
        communicator: the job's.
    """

    def __init__(self, every_steps: int | None, every_seconds: float | None, communicator: Communicator):
        self._every_steps, self._every_seconds = every_steps, every_seconds
        self._communicator = communicator
        self.restart()

    def restart(self) -> None:
        """Begins to count anew, when a checkpoint was written."""
        self._steps = 0
        self._ask_at = 1
        self._began = time.monotonic()

    def after(self, num_steps: int) -> bool:
        """True if a checkpoint is due now that `num_steps` more were done."""
        self._steps += num_steps
        if self._every_steps is not None and self._steps >= self._every_steps:
            return True
        if self._every_seconds is None or self._steps < self._ask_at:
            return False
        passed = time.monotonic() - self._began
        wait = round((self._every_seconds - passed) / (passed / self._steps) / 2) if passed < self._every_seconds else 0
        [told] = self._communicator.broadcast([tf.constant(max(wait, int(passed < self._every_seconds)))], "kp.due")
        self._ask_at = self._steps + int(told)
        return int(told) == 0
