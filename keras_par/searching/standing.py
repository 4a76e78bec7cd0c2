"""A choice for all nodes that changes with some variables: what follows is found without looking at all others."""

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from keras_par.searching.maker import Maker, Way
from keras_par.searching.problem import Cost

EVEN = 1 - 1e-12  # of seconds that are added up in another order

Score = tuple[float, float]  # bytes beyond the memory, and seconds: the less the better


@dataclass(frozen=True)
class Change:
    """What would be other than it is: states of nodes, ways of operations, costs of tables, their sum, its score."""

    states: dict[int, int]
    ways: dict[int, Way]
    costs: dict[int, Cost]
    cost: Cost
    score: Score


class Standing:
    """A choice that changes when variables do, if that is better.

    Args:
        maker: of the problem.
        choice: states of all nodes, as `maker.complete` has them.
        capacity: bytes of a rank.
    """

    def __init__(self, maker: Maker, choice: list[int], capacity: float):
        cost = maker.problem.cost(choice)
        assert cost is not None
        self.maker, self.choice, self.cost, self.capacity = maker, choice, cost, capacity
        self.operands, self.results = maker.nodes_of_operations()
        self.readers: dict[int, list[int]] = {}
        self.makers: dict[int, list[int]] = {}
        for place, (operands, results) in enumerate(zip(self.operands, self.results, strict=True)):
            for node in operands:
                self.readers.setdefault(node, []).append(place)
            for node in results:
                self.makers.setdefault(node, []).append(place)
        self.tables: dict[int, list[int]] = {}
        for number, table in enumerate(maker.problem.tables):
            for node in table.nodes:
                self.tables.setdefault(node, []).append(number)
        self.ways = [maker.ways[place, self._states(place, {})] for place in range(len(self.operands))]
        self.needs = Counter(node for way in self.ways for node in maker.nodes_of_moves(way))
        places = [(table, tuple(choice[node] for node in table.nodes)) for table in maker.problem.tables]
        self.costs = [table.costs[place] for table, place in places]  # which add up to the cost
        self.num_changes = 0

    @property
    def score(self) -> Score:
        """Of all as it is."""
        return self._score(self.cost)

    def better(self, variables: Mapping[int, int]) -> bool:
        """Takes these states if that is better; True if so."""
        change = self._changed(variables)
        if change is None or not is_less(change.score, self.score):
            return False
        for place, way in change.ways.items():
            self.needs.subtract(self.maker.nodes_of_moves(self.ways[place]))
            self.needs.update(self.maker.nodes_of_moves(way))
            self.ways[place] = way
        for node, state in change.states.items():
            self.choice[node] = state
        for number, cost in change.costs.items():
            self.costs[number] = cost
        self.cost = change.cost
        self.num_changes += 1
        return True

    def _score(self, cost: Cost) -> Score:
        return max(cost[1] - self.capacity, 0.0), cost[0]

    def _states(self, place: int, other: Mapping[int, int]) -> tuple[int, ...]:
        """Of what an operation reads."""
        return tuple(other.get(node, self.choice[node]) for node in self.operands[place])

    def _changed(self, variables: Mapping[int, int]) -> Change | None:
        """What follows from other states, None if they cannot be."""
        states = {node: state for node, state in variables.items() if self.choice[node] != state}
        ways: dict[int, Way] = {}
        waiting = sorted({place for node in states for place in self.readers.get(node, ())})
        while waiting:
            place = heapq.heappop(waiting)
            way = self.maker.ways.get((place, self._states(place, states)))
            if way is None:
                return None
            ways[place] = way
            for node, state in zip(self.results[place], way.results, strict=True):
                if states.get(node, self.choice[node]) != state:
                    if node in states:
                        return None
                    states[node] = state
                    for reader in set(self.readers.get(node, ())) - set(waiting):
                        heapq.heappush(waiting, reader)
        return self._priced(states, ways) if self._agree(states, ways) else None

    def _agree(self, states: Mapping[int, int], ways: Mapping[int, Way]) -> bool:
        """True if all operations that make a node give it the state that it has."""
        return all(
            way.results[self.results[place].index(node)] == state
            for node, state in states.items()
            for place in self.makers.get(node, ())
            for way in [ways.get(place, self.ways[place])]
        )

    def _priced(self, states: dict[int, int], ways: dict[int, Way]) -> Change | None:
        """The change with its moves and its cost, None where a table has none."""
        needs: Counter[int] = Counter()
        for place, way in ways.items():
            needs.subtract(self.maker.nodes_of_moves(self.ways[place]))
            needs.update(self.maker.nodes_of_moves(way))
        moves = {node: int(self.needs[node] + more > 0) for node, more in needs.items()}
        states |= {node: state for node, state in moves.items() if state != self.choice[node]}
        (seconds, num_bytes), costs, choice = self.cost, {}, self.choice
        for number in {number for node in states for number in self.tables.get(node, ())}:
            table, before = self.maker.problem.tables[number], self.costs[number]
            after = table.costs.get(tuple([states.get(node, choice[node]) for node in table.nodes]))
            if after is None:
                return None
            costs[number] = after
            seconds, num_bytes = seconds + after[0] - before[0], num_bytes + after[1] - before[1]
        return Change(states, ways, costs, (seconds, num_bytes), self._score((seconds, num_bytes)))


def is_less(one: Score, other: Score) -> bool:
    """True if a score is lower by more than rounding."""
    if not math.isclose(one[0], other[0], rel_tol=1e-9, abs_tol=1.0):
        return one[0] < other[0]
    return one[1] < other[1] * EVEN
