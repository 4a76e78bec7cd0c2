"""Finds which rank holds up or brought down a job, from what all ranks were last seen doing."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from keras_par.agent.states import Exit, State

START = "kp.init"
START_SECONDS = 120.0  # in which ranks connect, and the first job of a host compiles for them
MOST_DESCRIBED = 4  # ranks, with where each of them is
TOGETHER_SECONDS = 2.5  # ranks that get stuck at the same moment are seen to within two beats of each other
LEAST_STAY_SECONDS = 12.0  # a rank that is done may wait so long for the others, before it leaves
FEW, MOST_RUNS = 8, 8  # ranks, and runs of them, that a sentence names


@dataclass(frozen=True)
class Hang:
    """Ranks that make no progress: who is the reason, a healthy rank to compare with, and a sentence."""

    culprits: tuple[int, ...]
    witness: int | None
    text: str


def find_hang(states: Sequence[State], ended: Mapping[int, Exit], hang_after: float) -> Hang | None:
    """The hang that is under way, None if there is none.

    A rank that waits in a collective is held up by the ranks that do not; where all wait, they wait in different
    ones. Ranks that are all outside of `fit` and of collectives are left alone: what a script does there may take long.

    Args:
        states: of the ranks that run.
        ended: the ranks that have ended.
        hang_after: seconds without progress that make a hang.
    """
    stopped = [state for state in states if state.is_stopped and state.quiet >= hang_after]
    waiting = all_waiting([state for state in states if state.collectives and not state.is_stopped])
    those = {state.rank for state in waiting}
    others = [state for state in states if state.rank not in those]
    if stopped:
        return Hang(ranks(stopped), first_rank(waiting or others, stopped), describe_all(stopped))
    late = [state for state in waiting if state.quiet >= hang_after]
    if late and others:
        return Hang(ranks(others), late[0].rank, f"{describe_all(others)}; {waits(waiting)}")
    if late and len({state.collectives for state in waiting}) > 1:
        return parted(waiting)
    if late and ended:
        gone = ", ".join(has_ended(status, ended) for status in dict.fromkeys(end.status for end in ended.values()))
        held_up = f"{named(ranks(late))} still wait{'s' if len(late) == 1 else ''} in {names(late)}"
        return Hang(tuple(sorted(ended)), late[0].rank, f"{gone}, but {held_up}")
    closed = [state for state in waiting if state.has_closed]
    if late and closed:
        return Hang(ranks(closed), first_rank(waiting, closed), describe_all(closed))
    is_starting = {name for state in waiting for name in state.collectives} == {START}
    if any(state.quiet >= max(hang_after, START_SECONDS if is_starting else 0.0) for state in late):
        text = f"all ranks wait in {names(waiting)}, so the connection between them is the reason, not their program"
        return Hang(ranks(waiting), None, text)
    stuck = [state for state in others if state.call and state.quiet >= hang_after - TOGETHER_SECONDS]
    if any(state.quiet >= hang_after for state in stuck):
        return Hang(ranks(stuck), first_rank(states, stuck), describe_all(stuck))
    return None


def find_stay(states: Sequence[State], hang_after: float) -> Hang | None:
    """The ranks that cannot come to what others wait in, or whose scripts have ended long ago; None if there are none.

    Args:
        states: of the ranks that run.
        hang_after: seconds without progress that make a hang.
    """
    over = [state for state in states if state.is_over]
    late = [state for state in states if state.collectives and not state.is_over and state.quiet >= hang_after]
    long = max(hang_after, LEAST_STAY_SECONDS)
    left = [state for state in over if state.has_ended and not state.has_failed]  # else the supervisor ends them soon
    stay = over if late else [state for state in left if state.quiet >= long]
    if not stay:
        return None
    text = "; ".join(f"rank {state.rank} {state.why_over()}" for state in stay)
    return Hang(ranks(stay), late[0].rank, f"{text}; {waits(late)}") if late else Hang(ranks(stay), None, text)


def all_waiting(waiting: Sequence[State]) -> list[State]:
    """Those that have come to every collective that some wait in; one that lacks a part of them still computes.

    Ranks that have none in common are in different places of the program, and all wait.
    """
    sets = [set(state.collectives) for state in waiting]
    if not sets or not set.intersection(*sets):
        return list(waiting)
    everything = set.union(*sets)
    return [state for state in waiting if set(state.collectives) == everything]


def parted(waiting: Sequence[State]) -> Hang:
    """The hang of ranks that wait in different collectives, which the fewest ranks are the reason for."""
    places: dict[tuple[str, ...], list[State]] = {}
    for state in waiting:
        places.setdefault(state.collectives, []).append(state)
    most = max(map(len, places.values()))
    odd = [state for group in places.values() if len(group) < most for state in group] or list(waiting)
    groups = [f"{waits(group)} {group[0].place()}" for group in list(places.values())[:MOST_DESCRIBED]]
    if len(places) > MOST_DESCRIBED:
        groups.append(f"others wait in {len(places) - MOST_DESCRIBED} more")
    text = (
        f"the ranks run different code{since(waiting)}: {', but '.join(groups)}; every rank must come to the same "
        "collectives"
    )
    return Hang(ranks(odd), first_rank(waiting, odd), text)


def since(waiting: Sequence[State]) -> str:
    """From which step on ranks that wait are in different places, in words; nothing where not all are in `fit`."""
    if not all(state.call == "fit" for state in waiting):
        return ""
    epoch, step = min((state.epoch, state.step) for state in waiting)
    return f" from step {step} of epoch {epoch + 1} on" if step else f" from the begin of epoch {epoch + 1} on"


def has_ended(status: int, ended: Mapping[int, Exit]) -> str:
    """Which ranks have ended with a status."""
    some = [rank for rank, end in ended.items() if end.status == status]
    return f"{named(some)} {'has' if len(some) == 1 else 'have'} ended (status {status})"


def describe_all(states: Sequence[State]) -> str:
    """What each rank does instead of going on; of very many those that have made no progress for the longest time."""
    if len(states) <= MOST_DESCRIBED:
        return "; ".join(map(describe, states))
    shown = sorted(states, key=lambda state: (-round(state.quiet), state.rank))[:MOST_DESCRIBED]
    return f"{'; '.join(map(describe, shown))}; and {len(states) - len(shown)} more ranks"


def describe(state: State) -> str:
    """What one rank does instead of going on, in words."""
    if state.is_stopped:
        return (
            f"rank {state.rank} is stopped by a signal (SIGSTOP or SIGTSTP) in phase {state.phase} {state.place()} for "
            f"{state.quiet:.0f} s; 'kill -CONT' lets it go on"
        )
    if not state.has_joined:
        return f"rank {state.rank} has not come to kp.init()"
    if state.has_closed:
        return (
            f"rank {state.rank} has closed the files and connections that it did not open, such as the launcher's, "
            f"{state.place()}: look for os.close or os.closerange in the script"
        )
    lasts = f"for {state.phase_seconds:.0f} s"
    progress = "" if state.quiet > 0.5 * state.phase_seconds else " and makes progress"
    held = ""
    if state.python_seconds > 5:
        held = f", where no Python thread of it has run for {state.python_seconds:.0f} s"
    if state.is_writing:
        return (
            f"rank {state.rank} waits {lasts} until its output is taken {state.place()}{progress}: it prints more than "
            "is shown or written in that time"
        )
    if state.call is None:
        return f"rank {state.rank} is outside of fit {lasts}{progress}{held}"
    return f"rank {state.rank} is in {WORDS.get(state.phase, state.phase)} {state.place()} {lasts}{progress}{held}"


WORDS = {
    "data": "its input pipeline (phase data)",
    "forward-backward": "its computation (phase forward-backward)",
    "callback": "a callback (phase callback)",
    "reduce": "the reduction (phase reduce)",
}


def first_failure(exits: Sequence[Exit]) -> Exit | None:
    """The rank that failed first, None if none failed.

    Failures that only follow from another's, and ranks that the launcher ended, count where there is nothing else.
    """
    failures = [end for end in exits if end.is_failure]
    if failed_alike(exits):  # the launcher may have ended some, which their errors had come before
        failures = [end for end in failures if not end.was_told] or failures
    own = [end for end in failures if end.was_late or not (end.is_consequence or end.was_told)]
    alone = [end for end in own if not end.on_all_ranks]
    candidates = alone or own or [end for end in failures if not end.was_told] or failures
    return min(candidates, key=lambda end: (end.failed or end.time, end.rank), default=None)


def failed_alike(exits: Sequence[Exit]) -> bool:
    """True if every rank ended with the same error, so that none is to blame."""
    errors = {re.sub(r"^(\w+\.)+(?=\w+(:|$))", "", end.error or "") for end in exits}  # without the names of modules
    are_own = all(end.is_failure and not end.is_consequence and end.error for end in exits)
    return len(exits) > 1 and are_own and len(errors) == 1


def ranks(states: Sequence[State]) -> tuple[int, ...]:
    return tuple(sorted(state.rank for state in states))


def first_rank(states: Sequence[State], but: Sequence[State]) -> int | None:
    excluded = set(ranks(but))
    return next((state.rank for state in states if state.rank not in excluded), None)


def names(states: Sequence[State]) -> str:
    return " and ".join(f"'{name}'" for name in dict.fromkeys(name for state in states for name in state.collectives))


def waits(states: Sequence[State]) -> str:
    """Which ranks wait, and in what."""
    return f"{named(ranks(states))} wait{'s' if len(states) == 1 else ''} in {names(states)}"


def named(numbers: Iterable[int]) -> str:
    """The ranks as "rank 3", "ranks 0, 1 and 2", "ranks 0 to 6 and 8 to 9999" or "ranks 1, 3, ... and 4992 more"."""
    numbers = sorted(numbers)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    parts = [str(number) for number in numbers] if len(numbers) <= FEW else runs(numbers)
    return f"ranks {listed(parts)}"


def listed(parts: list[str]) -> str:
    """A list in words."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def runs(numbers: list[int]) -> list[str]:
    """Numbers that follow each other as one part, and at the end how many are left out."""
    grouped = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    shown = grouped[:MOST_RUNS]
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in shown]
    left = len(numbers) - sum(map(len, shown))
    return [*parts, f"{left} more"] if left else parts
