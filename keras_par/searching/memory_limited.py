"""Solves a problem within a limit of memory, though what it adds up is not all held at the same time."""

from collections.abc import Callable, Sequence

from keras_par.plan.cost import Prediction
from keras_par.searching import dynamic, exact

TRIES = 6  # for each sum of bytes
PATIENCE = 3  # of which one must fit
NEAR = 1.005  # times the least that a step within the limit can take is good enough

Step = tuple[list[int], Prediction]
Solver = dynamic.Solver | dynamic.PartSolver | exact.Solver


def within(limit: float, solvers: Sequence[Solver], predicted: Callable[[list[int]], Prediction]) -> Step | None:
    """A fast choice whose step fits, with the step; None if none was found.

    For each problem it halves what is between a capacity that is too small and one that is too large; until something
    fits it takes off instead what the step has too much.

    Args:
        limit: bytes of a rank.
        solvers: of problems that differ in their bytes: those of the last are more than a step holds, but for what one
            operation takes. Those of the others are less.
        predicted: the step of a choice.
    """
    *lower, upper = solvers
    fastest = upper.solve()
    if fastest is None:
        return None
    step = predicted(fastest)
    if step.num_bytes <= limit:
        return fastest, step
    if any(solver.fewest_bytes > limit for solver in lower):
        return None
    leanest = [(choice, predicted(choice)) for solver in solvers if (choice := solver.leanest) is not None]
    best = min((each for each in leanest if each[1].num_bytes <= limit), key=seconds_of, default=None)
    least_seconds = step.seconds  # of a step that fits
    for solver in solvers:
        too_small, too_large, excess = 0.0, solver.problem.cost(fastest)[1], step.num_bytes - limit
        has_fitted = False
        for number in range(TRIES):
            if (number == PATIENCE and not has_fitted) or (best and seconds_of(best) <= NEAR * least_seconds):
                break
            is_bound, less = solver is not upper and number == 0, too_large - excess
            capacity = limit if is_bound else less if too_small == 0 < less else (too_small + too_large) / 2
            choice = solver.solve(capacity)
            if choice is None:
                too_small = capacity
                continue
            found = choice, predicted(choice)
            if is_bound:
                least_seconds = max(least_seconds, seconds_of(found))
            excess = found[1].num_bytes - limit
            if excess > 0:
                too_large = solver.problem.cost(choice)[1]
            else:
                too_small, has_fitted = capacity, True
                best = min(best or found, found, key=seconds_of)
    return best


def seconds_of(step: Step) -> float:
    """Of a choice."""
    return step[1].seconds
