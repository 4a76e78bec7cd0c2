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
        members.order("pause")

    def note_pause(self, rank: int, answer: dict) -> None:
        """Takes in how far a rank is; after the last one's answer, tells all where to stop."""
        self._answers[rank] = answer
        running = list(self._members.running)
        if not all(each in self._answers for each in running):
            return
        answers = [self._answers[each] for each in running]
        if all(answer["call"] for answer in answers):
            self._members.order("stop_before", max(answer["executions"] for answer in answers) + 2)
        else:  # ranks outside of fit come to no step: Python's own KeyboardInterrupt ends them where they are
            self._members.order("stop_before", 2**62)
            self._members.order("signal", int(signal.SIGINT))
