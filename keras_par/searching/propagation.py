"""The search `propagation`: the user says how some variables lie, and the others follow, those nearest first."""

import math

from keras_par.searching.maker import Maker
from keras_par.searching.recursive import in_order


def solve(maker: Maker, capacity: float = math.inf) -> list[int] | None:
    """States of all nodes that fit into a memory, None if none were found."""
    said = {maker.node_of[maker.classes[n]] for n, t in enumerate(maker.trace.tensors) if t.path in maker.fixed}
    return in_order(maker, by_distance(maker, said), capacity)


def by_distance(maker: Maker, start: set[int]) -> list[int]:
    """The free nodes, in the order of how many operations lie between them and those of `start`."""
    neighbours: dict[int, set[int]] = {}
    for table in maker.problem.tables:
        for node in table.nodes:
            neighbours.setdefault(node, set()).update(table.nodes)
    distance, waiting = dict.fromkeys(start, 0), sorted(start)
    for node in waiting:
        for other in sorted(neighbours.get(node, set()) - distance.keys()):
            distance[other] = distance[node] + 1
            waiting.append(other)
    nodes = maker.free_nodes
    return sorted(nodes, key=lambda node: distance.get(node, math.inf))
