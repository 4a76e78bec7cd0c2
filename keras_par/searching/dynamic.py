"""The search `dynamic`: nodes are eliminated one by one, with the best times for each memory (Bellman, 1957).

A table's cell holds a front: points of which none is better in both time and memory. To eliminate a node adds up the
tables that have it and keeps, for each combination of the other nodes' states, the front over its own. What is left is
the front of the whole problem; going back from one of its points says each node's state.

Without a limit of memory only the fastest point is kept. With one, a price of memory is looked for first (Lagrange's
relaxation), which gives a good choice and a bound that none can beat. Then points are dropped that cannot fit, or that
cannot become faster than that choice; if there are too many still, some of them are dropped evenly, and the search is
repeated with more of them until that changes nothing, or until SECONDS are over. Of a large problem nobody asks for the
last thousandth.
"""

import heapq
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from keras_par.searching.pareto_fronts import Fronts, Limits, added, eliminated
from keras_par.searching.problem import Problem, Table

WIDTHS = (16, 64, 256)  # points of a front, in the order of trying
PRICES = 20  # of memory, that are tried
PRECISION = 1e-9
MANY_NODES, ROUGH_PRECISION = 500, 1e-3  # from so many on, what is so near the bound will do
SECONDS = 5.0
MOST_CELLS = 1 << 18  # of a table
PART_CELLS, ROUNDS = 1 << 10, 4  # of a table where some nodes keep their states, and how often others do


class EntangledError(Exception):
    """A problem whose tables would not fit into memory, because too many nodes depend on each other."""


class Solver:
    """Solves a problem in one memory after another.

    Args:
        problem: what to solve.
        order: of its nodes, if that is known.

    Raises:
        EntangledError: see there.
    """

    def __init__(self, problem: Problem, order: Sequence[int] | None = None):
        if order is None:
            order, kept = elimination_order(problem, MOST_CELLS)
            if kept:
                raise EntangledError
        self.problem, self.order = problem, order
        self.given, seconds, num_bytes = zip(*(given(problem, table) for table in problem.tables), strict=True)
        self.least = problem.seconds + sum(seconds), problem.num_bytes + sum(num_bytes)  # of each table by itself

    @cached_property
    def fastest(self) -> list[int] | None:
        """The fastest states in any memory."""
        return self._best(Limits())

    @cached_property
    def leanest(self) -> list[int] | None:
        """The states that take the fewest bytes."""
        return self._best(Limits(price=math.inf))

    @property
    def fewest_bytes(self) -> float:
        """That any choice takes."""
        return math.inf if self.leanest is None else self.problem.cost(self.leanest)[1]

    def solve(self, capacity: float = math.inf, widths: Sequence[int] = WIDTHS) -> list[int] | None:
        """As the function, with fronts of so many points."""
        until, cost = time.monotonic() + SECONDS, self.problem.cost
        if self.fastest is None or cost(self.fastest)[1] <= capacity:
            return self.fastest
        if self.fewest_bytes > capacity:
            return None
        precision = PRECISION if len(self.order) < MANY_NODES else ROUGH_PRECISION
        best, bound = self._by_price(capacity, precision)
        for width in widths:
            before = cost(best)[0]
            if before <= bound * (1 + precision) or time.monotonic() > until:
                break
            limits = Limits(width, 0.0, capacity - self.least[1], before * (1 + PRECISION) - self.least[0])
            found = self._best(limits)
            if found is not None and cost(found)[0] < before:
                best = found
            if not limits.has_dropped:
                break
        return best

    def _by_price(self, capacity: float, precision: float) -> tuple[list[int], float]:
        """A choice that fits, and seconds that none that fits can beat, by asking what memory may cost.

        Args:
            capacity: bytes, which the fastest choice does not fit into.
            precision: the part that the choice may be above the bound.
        """
        cost, best = self.problem.cost, self.leanest
        assert self.fastest is not None and best is not None
        (quick, large), (slow, small) = cost(self.fastest), cost(best)
        bound = quick
        for _ in range(PRICES):
            price = (slow - quick) / (large - small)
            found = self._best(Limits(price=price))
            assert found is not None
            seconds, num_bytes = cost(found)
            value = seconds + price * num_bytes
            bound = max(bound, value - price * capacity)
            if value >= min(quick + price * large, slow + price * small) * (1 - 1e-12):
                break
            if num_bytes <= capacity:
                slow, small = seconds, num_bytes
                best = min(best, found, key=cost)
            else:
                quick, large = seconds, num_bytes
            if cost(best)[0] <= bound * (1 + precision):
                break
        return best, bound

    def _best(self, limits: Limits) -> list[int] | None:
        """The best choice of the points that `limits` keep, None if no states can be together."""
        fronts = dict(enumerate(self.given))
        having: dict[int, set[int]] = {node: set() for node in self.order}
        for number, each in fronts.items():
            for node in each.nodes:
                having[node].add(number)
        for node in self.order:
            numbers = sorted(having.pop(node), key=lambda number: fronts[number].seconds.size)
            total = fronts[numbers[0]]
            for number in numbers[1:]:
                total = added(total, fronts[number], limits)
            left = eliminated(total, node, limits)
            for number in numbers:
                for other in fronts.pop(number).nodes:
                    if other != node:
                        having[other].discard(number)
            fronts[numbers[0]] = left
            for other in left.nodes:
                having[other].add(numbers[0])
        [total, *others] = fronts.values()
        for each in others:
            total = added(total, each, limits)
        worth = limits.worth(total.seconds, total.num_bytes)
        if not np.isfinite(worth).any():
            return None
        choice = dict(self.problem.kept)
        total.decide(choice, int(worth.argmin()))
        return [choice.get(node, 0) for node in range(len(self.problem.states))]


class PartSolver:
    """Finds good choices where too many nodes depend on each other: large neighbourhood search (Shaw, 1998).

    As many nodes as need to keep their states while the others are solved; then others keep theirs. Of several memories
    each begins with what was found for the last.

    Args:
        problem: of which the first states of all nodes can be together.
    """

    fewest_bytes = 0.0  # that is known

    def __init__(self, problem: Problem):
        self.problem, self.best = problem, [0] * len(problem.states)  # that was found last

    @cached_property
    def leanest(self) -> list[int] | None:
        """A choice that takes few bytes."""
        return self._solved(0.0, ROUNDS)

    def solve(self, capacity: float = math.inf) -> list[int] | None:
        """A fast choice that fits, None if none was found."""
        found = self._solved(capacity, ROUNDS if math.isinf(capacity) else 1)
        return found if found is not None and self.problem.cost(found)[1] <= capacity else None

    def _solved(self, capacity: float, num_rounds: int) -> list[int] | None:
        """A choice that is fast if it fits, and takes few bytes if none does."""
        if math.isinf(self.problem.cost(self.best)[0]):
            return None
        times_kept, until = Counter[int](), time.monotonic() + SECONDS
        for _ in range(num_rounds):
            order, kept = elimination_order(self.problem, PART_CELLS, times_kept)
            solver = Solver(replace(self.problem, kept={node: self.best[node] for node in kept}), order)
            self.best = solver.solve(capacity, widths=()) or solver.leanest or self.best
            times_kept.update(kept)
            if time.monotonic() > until:
                break
        return self.best


def is_entangled(problem: Problem) -> bool:
    """True if too many nodes depend on each other for `solve`."""
    return bool(elimination_order(problem, MOST_CELLS)[1])


def elimination_order(
    problem: Problem, most_cells: int, times_kept: Mapping[int, int] | None = None
) -> tuple[list[int], list[int]]:
    """The nodes of several states, each time the one of which the smallest table is left; and those to keep theirs.

    Where that table has more cells, one of the nodes that were kept least often is kept, that with most to it.
    """
    times = Counter(times_kept)
    near: dict[int, set[int]] = {}
    for table in problem.tables:
        nodes = [node for node in table.nodes if problem.num_states(node) > 1]
        for node in nodes:
            near.setdefault(node, set()).update(nodes)

    def cells(node: int) -> int:
        return math.prod(problem.num_states(other) for other in near[node] if other != node)

    size = {node: cells(node) for node in near}
    waiting = [(found, node) for node, found in size.items()]
    heapq.heapify(waiting)
    order: list[int] = []
    kept: list[int] = []
    while waiting:
        found, node = heapq.heappop(waiting)
        if size.get(node) != found:  # it is out, or stands there again with its newer size
            continue
        is_kept = found * problem.num_states(node) > most_cells
        if is_kept:
            heapq.heappush(waiting, (found, node))
            node = min(size, key=lambda each: (times[each], -size[each]))
        (kept if is_kept else order).append(node)
        del size[node]
        others = near.pop(node) - {node}
        for other in others:
            near[other] |= set() if is_kept else others
            near[other].discard(node)
        for other in others:
            size[other] = cells(other)
            heapq.heappush(waiting, (size[other], other))
    return order, kept


def given(problem: Problem, table: Table) -> tuple[Fronts, float, float]:
    """A table of the problem, with a point for each cell, above the least that it costs; and that.

    Nodes of one state are left out: there is nothing to decide, and arrays have few dims.
    """
    costs = np.full([*(len(problem.states[node]) for node in table.nodes), 1, 2], np.inf)
    for cell, cost in table.costs.items():
        costs[*cell, 0] = cost
    nodes = tuple(node for node in table.nodes if problem.num_states(node) > 1)
    seconds, num_bytes = np.moveaxis(
        costs[tuple(slice(None) if node in nodes else problem.kept.get(node, 0) for node in table.nodes)], -1, 0
    )
    least = (seconds.min(), num_bytes.min()) if np.isfinite(seconds).any() else (0.0, 0.0)
    return Fronts(nodes, seconds - least[0], num_bytes - least[1]), float(least[0]), float(least[1])
