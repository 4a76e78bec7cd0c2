"""Lets all ranks stop after the same step when the user asks for it, which needs no collective and no waiting rank."""

import signal

from keras_par.launch.members import Members


class Ending:
    """The end of a job that its user asked for once.

    Each rank pauses before its next step, or is in a step from which it comes to one. The most advanced of them has
    begun so many executions, and can begin one more before it sees that it shall pause; so all stop before the one
    after that.

    Args:
        members: the ranks.
    """

    def __init__(self, members: Members):
        self._members = members
        self._answers: dict[int, dict] = {}
        self._is_decided = False
        members.order("pause")

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
        else:  # ranks outside of fit come to no step: Python's own KeyboardInterrupt ends all where they are
            self._members.order("stop_before", 2**62)
            self._members.order("signal", int(signal.SIGINT))
