"""Lets all ranks stop after the same step, for the user or another world: no collective is needed, and none waits."""

import signal

from keras_par.base.heartbeat_page import AT_ONCE, BY_USER, FOR_ANOTHER_WORLD
from keras_par.launch.members import Members


class Ending:
    """The end of an attempt that its user asked for once, or that comes so that other ranks can go on.

    Each rank pauses before its next step, or is in a step from which it comes to one. The most advanced of them has
    begun so many executions, and can begin one more before it sees that it shall pause; so all stop before the one
    after that, or at the end of `fit` if it comes first. Ranks outside of `fit` come to no step: Python's own
    KeyboardInterrupt ends all where they are, if the user asked for the end; for another world all are let go on.

    Args:
        members: the ranks.
        is_of_user: True if the user asked for it.
    """

    def __init__(self, members: Members, is_of_user: bool = True):
        self._members, self._is_of_user = members, is_of_user
        self._answers: dict[int, dict] = {}
        self._is_decided = False
        self.is_given_up = False  # all go on
        members.order("pause", BY_USER if is_of_user else FOR_ANOTHER_WORLD)

    def note_pause(self, rank: int, answer: dict) -> None:
        """Takes in how far a rank is."""
        self._answers[rank] = answer

    def decide(self) -> None:
        """Once all ranks that run have answered, tells them where to stop."""
        running = list(self._members.running)
        if self._is_decided or not all(rank in self._answers for rank in running):
            return
        self._is_decided = True
        answers = [self._answers[rank] for rank in running]
        if all(answer["is_in_fit"] for answer in answers):
            self._members.order("stop_before", max((answer["executions"] for answer in answers), default=0) + 2)
        elif not self._is_of_user:
            self.is_given_up = True
            self._members.order("pause", 0)
        else:
            self._members.order("stop_before", AT_ONCE)
            self._members.order("signal", int(signal.SIGINT))
