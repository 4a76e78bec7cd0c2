"""The search as a problem of its own: nodes with states, and tables of what states cost together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Cost = tuple[float, float]  # seconds of a step, and bytes of a rank's memory


@dataclass
class Table:
    """What states of some nodes cost together; those that are missing cannot be.

    Args:
        nodes: which, each once.
        costs: by the numbers of their states.
    """

    nodes: tuple[int, ...]
    costs: dict[tuple[int, ...], Cost]


@dataclass
class Problem:
    """Nodes and tables.

    Args:
        states: of each node.
        tables: their costs add up.
        seconds: that any choice costs.
        num_bytes: that any choice takes.
        kept: the one state that each of these nodes may have.
    """

    states: list[list] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    num_bytes: float = 0.0
    kept: Mapping[int, int] = field(default_factory=dict)

    def num_states(self, node: int) -> int:
        """How many states a node may have."""
        return 1 if node in self.kept else len(self.states[node])

    def cost(self, choice: Sequence[int]) -> Cost:
        """Of one state for each node; infinite if they cannot be together."""
        places = ((table, tuple([choice[node] for node in table.nodes])) for table in self.tables)
        costs = [table.costs.get(place, (math.inf, math.inf)) for table, place in places]
        return self.seconds + sum(cost[0] for cost in costs), self.num_bytes + sum(cost[1] for cost in costs)
