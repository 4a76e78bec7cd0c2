"""Solves a problem within a limit of memory of which it knows a part only."""

from collections.abc import Callable

from keras_par.plan.cost import Prediction
from keras_par.searching.problem import Problem

TRIES = 8  # with less and less memory for all but what is taken at times, as the largest tensor that is gathered


def within(
    limit: float,
    problem: Problem,
    solve: Callable[[float], list[int] | None],
    predicted: Callable[[list[int]], Prediction],
) -> tuple[list[int], Prediction] | None:
    """A choice whose step fits, with the step; None if none was found.

    Args:
        limit: bytes of a rank.
        problem: that is solved.
        solve: gives a choice whose cost is at most so many bytes.
        predicted: the step of a choice.
    """
    capacity = limit
    for _ in range(TRIES):
        choice = solve(capacity)
        if choice is None:
            return None
        prediction = predicted(choice)
        if prediction.num_bytes <= limit:
            return choice, prediction
        cost = problem.cost(choice)
        assert cost is not None
        capacity = cost[1] - (prediction.num_bytes - limit)
    return None
