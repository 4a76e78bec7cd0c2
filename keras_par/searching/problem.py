"""The search as a problem of its own: nodes with states, and tables of what states cost together."""

from collections.abc import Sequence
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
    """

    states: list[list] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    seconds: float = 0.0
    num_bytes: float = 0.0

    def cost(self, choice: Sequence[int]) -> Cost | None:
        """Of one state for each node; None if they cannot be together."""
        seconds, num_bytes = self.seconds, self.num_bytes
        for table in self.tables:
            found = table.costs.get(tuple(choice[node] for node in table.nodes))
            if found is None:
                return None
            seconds, num_bytes = seconds + found[0], num_bytes + found[1]
        return seconds, num_bytes
