"""Solves a problem within a limit of memory, though what it adds up is not all held at the same time."""

import math
from collections.abc import Callable, Sequence

from keras_par.plan.cost import Prediction
from keras_par.searching.problem import Problem

TRIES = 6  # for each sum of bytes
PATIENCE = 3  # of which one must fit
NEAR = 1.005  # times the least that a step within the limit can take is good enough

Solve = Callable[[float], list[int] | None]
Step = tuple[list[int], Prediction]


def within(
    limit: float,
    problems: Sequence[tuple[Problem, Solve]],
    predicted: Callable[[list[int]], Prediction],
    leanest: Sequence[list[int]] = (),
) -> Step | None:
    """A fast choice whose step fits, with the step; None if none was found.

    Args:
        limit: bytes of a rank.
        problems: with what gives a choice within a capacity. They differ in their bytes: those of the last are more
            than a step holds, but for what one operation takes. Those of the others, if there are any, are less, and
            their choices are the fastest.
        predicted: the step of a choice.
        leanest: choices that take the fewest bytes, by one sum or another, for where no other fits.
    """
    steps = [(choice, predicted(choice)) for choice in leanest]
    lean = min((step for step in steps if step[1].num_bytes <= limit), key=seconds_of, default=None)
    *lower, upper = problems
    fastest = upper[1](math.inf)
    if fastest is None:
        return lean
    halving = Halving(limit, predicted, fastest, lean)
    if halving.excess > 0 and (not lower or any([halving.look(*each, is_lower=True) for each in lower])):
        halving.look(*upper, is_lower=False)
    return halving.best


def seconds_of(step: Step) -> float:
    """Of a choice."""
    return step[1].seconds


class Halving:
    """Looks for the largest capacities that give choices whose steps fit.

    Args:
        limit: bytes of a rank.
        predicted: the step of a choice.
        fastest: the choice in any memory.
        best: a step that fits, if one is known.
    """

    def __init__(
        self,
        limit: float,
        predicted: Callable[[list[int]], Prediction],
        fastest: list[int],
        best: Step | None = None,
    ):
        self.limit, self.predicted, self.fastest = limit, predicted, fastest
        step = predicted(fastest)
        self.excess = step.num_bytes - limit
        self.best = (fastest, step) if self.excess <= 0 else best
        self.least_seconds = step.seconds  # of a step that fits

    def look(self, problem: Problem, solve: Solve, is_lower: bool) -> bool:
        """Halves what is between a capacity that is too small and one that is too large; False if nothing can fit.

        Until something fits it takes off instead what the step has too much.
        """
        too_small, too_large, excess = 0.0, bytes_of(problem, self.fastest), self.excess
        has_fitted = False
        for number in range(TRIES):
            if number == PATIENCE and not has_fitted:
                break
            is_bound, less = is_lower and number == 0, too_large - excess
            if is_bound:
                capacity = self.limit
            elif too_small == 0 < less:
                capacity = less
            else:
                capacity = (too_small + too_large) / 2
            choice = solve(capacity)
            if choice is None:
                if is_bound:
                    return False
                too_small = capacity
                continue
            step = self.predicted(choice)
            excess = step.num_bytes - self.limit
            if is_bound:
                self.least_seconds = max(self.least_seconds, step.seconds)
            if excess > 0:
                too_large = bytes_of(problem, choice)
            else:
                too_small, has_fitted = capacity, True
                self.best = min(self.best or (choice, step), (choice, step), key=seconds_of)
            if self.best is not None and self.best[1].seconds <= NEAR * self.least_seconds:
                break
        return True


def bytes_of(problem: Problem, choice: list[int]) -> float:
    """That a problem adds up for a choice that it has found."""
    cost = problem.cost(choice)
    assert cost is not None
    return cost[1]
