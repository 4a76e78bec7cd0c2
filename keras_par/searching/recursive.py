"""The search `recursive`: the ranks are halved again and again, and the heaviest operations choose first.

As D-Rec does it (Wang et al., 2021): each halving goes to the axis of rows or to the other, whichever is faster. For a
mesh, variables take the layout that costs least beside those that have chosen, and look once more until none changes.
"""

import math
from collections.abc import Callable, Sequence

from keras_par.searching.problem import Maker

SWEEPS = 8


def halvings(num_ranks: int, cost: Callable[[int, int], float]) -> list[tuple[int, int]]:
    """The meshes, ranks by rows and by the other axis, that halving looks at, the last ones for all ranks.

    Args:
        num_ranks: of the job.
        cost: seconds of a mesh, infinite where it cannot be.
    """
    mesh, tried = (1, 1), []
    for factor in factors(num_ranks):
        either = [(mesh[0] * factor, mesh[1]), (mesh[0], mesh[1] * factor)]
        tried = either
        mesh = min(either, key=lambda each: cost(*each))
    return tried or [mesh]


def factors(number: int) -> list[int]:
    """Its primes, the largest first."""
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return sorted(found, reverse=True)


def solve(maker: Maker, capacity: float = math.inf) -> list[int] | None:
    """States of all nodes that fit into a memory, None if none were found."""
    nodes = maker.variable_nodes
    state = dict.fromkeys(nodes, 0)
    best = score(maker, state, capacity)
    for _ in range(SWEEPS):
        before = dict(state)
        for node in nodes:
            best = improve(maker, state, node, capacity, best)
        if state == before:
            break
    return maker.complete(state) if best[0] == 0 else None


def improve(
    maker: Maker, state: dict[int, int], node: int, capacity: float, best: tuple[float, float]
) -> tuple[float, float]:
    """Gives a node the state that is best beside the others'; returns what that scores."""
    for other in range(len(maker.problem.states[node])):
        found = score(maker, {**state, node: other}, capacity)
        if found < best:
            best, state[node] = found, other
    return best


def score(maker: Maker, state: dict[int, int], capacity: float) -> tuple[float, float]:
    """Bytes beyond the memory, and seconds: the less the better."""
    choice = maker.complete(state)
    cost = None if choice is None else maker.problem.cost(choice)
    return (math.inf, math.inf) if cost is None else (max(cost[1] - capacity, 0.0), cost[0])


def in_order(maker: Maker, nodes: Sequence[int], capacity: float = math.inf) -> list[int] | None:
    """As `solve`, with one look at each node, in this order."""
    state = dict.fromkeys(maker.variable_nodes, 0)
    best = score(maker, state, capacity)
    for node in nodes:
        best = improve(maker, state, node, capacity, best)
    return maker.complete(state) if best[0] == 0 else None
