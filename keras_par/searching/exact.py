"""The search `exact`: the problem as an integer program, to know how far the others are from the best."""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from keras_par.searching.problem import Problem

UNIT = 2.0**20  # bytes: HiGHS's tolerances are absolute


GAP = 1e-6  # the part that what is found may be above the best


class Solver:
    """Solves a problem in one memory after another.

    Args:
        problem: what to solve.
    """

    def __init__(self, problem: Problem):
        self.problem = problem

    @cached_property
    def leanest(self) -> list[int] | None:
        """The states that take the fewest bytes."""
        return solve(self.problem, of_bytes=True)

    @property
    def fewest_bytes(self) -> float:
        """That any choice takes."""
        return math.inf if self.leanest is None else self.problem.cost(self.leanest)[1] * (1 - GAP)

    def solve(self, capacity: float = math.inf) -> list[int] | None:
        """As the function."""
        return solve(self.problem, capacity)


def solve(
    problem: Problem, capacity: float = math.inf, seconds: float = 60.0, of_bytes: bool = False
) -> list[int] | None:
    """The fastest states of all nodes that fit into a memory, None if none do. HiGHS solves it, by scipy.

    Args:
        problem: what to solve.
        capacity: bytes.
        seconds: after which the best that was found counts.
        of_bytes: True to find those that take the fewest bytes.

    Raises:
        ValueError: scipy is not installed.
        RuntimeError: nothing was found in that time.
    """
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ModuleNotFoundError:
        raise ValueError("keras-par: search='exact' needs scipy: run 'pip install scipy'.") from None
    first = [0]
    for states in problem.states:
        first.append(first[-1] + len(states))
    num_states = first[-1]
    entries = [(table, place, cost) for table in problem.tables for place, cost in table.costs.items()]
    objective = np.array([0.0] * num_states + [cost[0] for _, _, cost in entries])
    held = np.array([0.0] * num_states + [cost[1] for _, _, cost in entries])
    found = list(equations(problem, first))
    terms = [(factor, row, column) for row, (each, _) in enumerate(found) for column, factor in each]
    values, rows, columns = zip(*terms, strict=True)
    matrix, wanted = coo_array((values, (rows, columns)), (len(found), len(objective))), [value for _, value in found]
    constraints = [LinearConstraint(matrix.tocsr(), wanted, wanted)]
    if math.isfinite(capacity):
        constraints.append(LinearConstraint(held[None] / UNIT, -np.inf, (capacity - problem.num_bytes) / UNIT))
    solved = milp(
        held / UNIT if of_bytes else objective * 1e3,  # milliseconds: HiGHS's tolerances are absolute
        integrality=np.ones_like(objective),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": seconds, "mip_rel_gap": GAP},
    )
    if solved.status == 2:
        return None
    if solved.x is None:
        raise RuntimeError(f"keras-par: search='exact' found nothing in {seconds:g} seconds: use search='dynamic'.")
    return [int(np.argmax(solved.x[begin:end])) for begin, end in itertools.pairwise(first)]


def equations(problem: Problem, first: Sequence[int]) -> Iterator[tuple[list[tuple[int, float]], float]]:
    """Each node has one state, and its tables' cells are those of that: unknowns with their factors, and their sum.

    Args:
        problem: of which the unknowns are the states of all nodes, and the cells of all tables.
        first: the unknown of each node's first state.
    """
    for begin, end in itertools.pairwise(first):
        yield [(state, 1.0) for state in range(begin, end)], 1.0
    unknown = itertools.count(first[-1])
    for table in problem.tables:
        cells: dict[tuple[int, int], list[tuple[int, float]]] = {
            (node, state): [] for node in table.nodes for state in range(len(problem.states[node]))
        }
        for place, cell in zip(table.costs, unknown, strict=False):
            for key in zip(table.nodes, place, strict=True):
                cells[key].append((cell, 1.0))
        for (node, state), terms in cells.items():
            yield [*terms, (first[node] + state, -1.0)], 0.0
