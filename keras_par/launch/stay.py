"""Finds ranks whose programs are over while their processes stay, and says what keeps them."""

from collections.abc import Sequence

from keras_par.agent.states import State
from keras_par.launch.culprit import Hang, list_ranks, names, ranks

LEAST_SECONDS = 12.0  # a rank that is done may wait so long for the others, before it leaves


def find_stay(states: Sequence[State], hang_after: float) -> Hang | None:
    """The ranks that cannot come to what others wait in, or whose scripts have ended long ago; None if there are none.

    Args:
        states: of the ranks that run.
        hang_after: seconds without progress that make a hang.
    """
    over = [state for state in states if state.is_over]
    late = [state for state in states if state.collectives and not state.is_over and state.quiet >= hang_after]
    long = max(hang_after, LEAST_SECONDS)
    left = [state for state in over if state.has_ended and not state.has_failed]  # else the supervisor ends them soon
    stay = over if late else [state for state in left if state.quiet >= long]
    if not stay:
        return None
    text = "; ".join(f"rank {state.rank} {state.why_over()}" for state in stay)
    if late:
        text += f"; {list_ranks(late)} wait{'s' if len(late) == 1 else ''} in {names(late)}"
    return Hang(ranks(stay), late[0].rank if late else None, text)
