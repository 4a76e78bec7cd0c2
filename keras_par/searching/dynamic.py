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
from collections.abc import Sequence

import numpy as np

from keras_par.searching.fronts import Fronts, Limits, added, eliminated, worth_of
from keras_par.searching.problem import Problem

WIDTHS = (16, 64, 256)  # points of a front, in the order of trying
PRICES = 20  # of memory, that are tried
PRECISION = 1e-9
MANY_NODES, ROUGH_PRECISION = 500, 1e-3  # from so many on, what is so near the bound will do
SECONDS = 5.0
MOST_CELLS = 1 << 18  # of a table


class EntangledError(Exception):
    """A problem whose tables would not fit into memory, because too many nodes depend on each other."""


def solve(problem: Problem, capacity: float = math.inf) -> list[int] | None:
    """The fastest states of all nodes that fit into a memory, None if none do.

    Args:
        problem: what to solve.
        capacity: bytes.

    Raises:
        EntangledError: see there.
    """
    if not all(table.costs for table in problem.tables):
        return None
    until = time.monotonic() + SECONDS
    order = elimination_order(problem)
    fastest = solve_with(problem, order, Limits())
    if fastest is None or cost_of(problem, fastest)[1] <= capacity:
        return fastest
    leanest = solve_with(problem, order, Limits(price=math.inf))
    if leanest is None or cost_of(problem, leanest)[1] > capacity:
        return None
    precision = PRECISION if len(order) < MANY_NODES else ROUGH_PRECISION
    best, bound = by_price(problem, order, capacity, fastest, leanest, precision)
    least = [sum(min(cost[i] for cost in table.costs.values()) for table in problem.tables) for i in (0, 1)]
    for width in WIDTHS:
        before = cost_of(problem, best)[0]
        if before <= bound * (1 + precision) or time.monotonic() > until:
            break
        limits = Limits(width, 0.0, capacity - problem.num_bytes - least[1])
        limits.seconds = before * (1 + PRECISION) - problem.seconds - least[0]
        found = solve_with(problem, order, limits)
        if found is not None and cost_of(problem, found)[0] < before:
            best = found
        if not limits.has_dropped:
            break
    return best


def leanest(problem: Problem) -> list[int] | None:
    """The states of all nodes that take the fewest bytes, None if no states can be together.

    Raises:
        EntangledError: see there.
    """
    if not all(table.costs for table in problem.tables):
        return None
    return solve_with(problem, elimination_order(problem), Limits(price=math.inf))


def is_entangled(problem: Problem) -> bool:
    """True if too many nodes depend on each other for `solve`."""
    try:
        elimination_order(problem)
    except EntangledError:
        return True
    return False


def by_price(
    problem: Problem,
    order: Sequence[int],
    capacity: float,
    fastest: list[int],
    leanest: list[int],
    precision: float,
) -> tuple[list[int], float]:
    """A choice that fits, and seconds that none that fits can beat, by asking what memory may cost.

    Args:
        problem: what to solve.
        order: of the nodes.
        capacity: bytes.
        fastest: a choice that does not fit.
        leanest: one that does.
        precision: the part that the choice may be above the bound.
    """
    (quick, large), (slow, small) = cost_of(problem, fastest), cost_of(problem, leanest)
    best, bound = leanest, quick
    for _ in range(PRICES):
        price = (slow - quick) / (large - small)
        found = solve_with(problem, order, Limits(price=price))
        assert found is not None
        seconds, num_bytes = cost_of(problem, found)
        value = seconds + price * num_bytes
        bound = max(bound, value - price * capacity)
        if value >= min(quick + price * large, slow + price * small) * (1 - 1e-12):
            break
        if num_bytes <= capacity:
            slow, small = seconds, num_bytes
            if seconds < cost_of(problem, best)[0]:
                best = found
        else:
            quick, large = seconds, num_bytes
        if cost_of(problem, best)[0] <= bound * (1 + precision):
            break
    return best, bound


def cost_of(problem: Problem, choice: Sequence[int]) -> tuple[float, float]:
    """Of a choice that can be."""
    cost = problem.cost(choice)
    assert cost is not None
    return cost


def elimination_order(problem: Problem) -> list[int]:
    """The nodes of several states, each time the one of which the smallest table is left.

    Raises:
        EntangledError: that is too large.
    """
    near: dict[int, set[int]] = {}
    for table in problem.tables:
        nodes = [node for node in table.nodes if len(problem.states[node]) > 1]
        for node in nodes:
            near.setdefault(node, set()).update(nodes)

    def cells(node: int) -> int:
        return math.prod(len(problem.states[other]) for other in near[node] if other != node)

    size = {node: cells(node) for node in near}
    waiting = [(found, node) for node, found in size.items()]
    heapq.heapify(waiting)
    order: list[int] = []
    while waiting:
        found, node = heapq.heappop(waiting)
        if size.get(node) != found:  # it is out, or stands there again with its newer size
            continue
        if found * len(problem.states[node]) > MOST_CELLS:
            raise EntangledError
        order.append(node)
        del size[node]
        others = near.pop(node) - {node}
        for other in others:
            near[other] |= others
            near[other].discard(node)
        for other in others:
            size[other] = cells(other)
            heapq.heappush(waiting, (size[other], other))
    return order


def solve_with(problem: Problem, order: Sequence[int], limits: Limits) -> list[int] | None:
    """As `solve`, with what `limits` keep."""
    fronts = {number: given(problem, table.nodes, table.costs) for number, table in enumerate(problem.tables)}
    having: dict[int, set[int]] = {node: set() for node in order}
    for number, each in fronts.items():
        for node in each.nodes:
            having[node].add(number)
    for node in order:
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
    worth = worth_of(total.seconds, total.num_bytes, limits.price)
    if not np.isfinite(worth).any():
        return None
    choice: dict[int, int] = {}
    total.decide(choice, int(worth.argmin()))
    return [choice.get(node, 0) for node in range(len(problem.states))]


def given(problem: Problem, nodes: tuple[int, ...], costs: dict) -> Fronts:
    """A table of the problem, with a point for each cell, above the least that it costs.

    Nodes of one state are left out: there is nothing to decide, and arrays have few dims.
    """
    shape = (*(len(problem.states[node]) for node in nodes), 1)
    seconds, num_bytes = np.full(shape, np.inf), np.full(shape, np.inf)
    for place, cost in costs.items():
        seconds[*place, 0], num_bytes[*place, 0] = cost
    sure = tuple(dim for dim, node in enumerate(nodes) if len(problem.states[node]) == 1)
    left = tuple(node for node in nodes if len(problem.states[node]) > 1)
    return Fronts(left, (seconds - seconds.min()).squeeze(sure), (num_bytes - num_bytes.min()).squeeze(sure))
