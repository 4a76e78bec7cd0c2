"""What one system has shown on one workload, and how two are set beside each other."""

import statistics
from dataclasses import dataclass, field

BOUND = "bound"


@dataclass
class Result:
    """One system on one workload.

    Args:
        seconds: of each epoch that counts; empty if the system did not run.
        rows: of an epoch, on all ranks.
        steps: of an epoch.
        peak_memory: bytes that the processes had at most, of each.
        told: what the first rank says besides.
        failure: why it did not run.
    """

    workload: str
    system: str
    rows: int
    steps: int
    seconds: list[float] = field(default_factory=list)
    peak_memory: list[int] = field(default_factory=list)
    told: dict = field(default_factory=dict)
    failure: str = ""

    @property
    def rows_per_second(self) -> float:
        return self.rows / statistics.median(self.seconds)

    @property
    def step_ms(self) -> float:
        return 1000 * statistics.median(self.seconds) / self.steps


def ratio(result: Result, against: Result) -> float:
    """Throughput by throughput: the median of the ratios round by round, in which a drift of the machine cancels."""
    return statistics.median(b / a for a, b in zip(result.seconds, against.seconds, strict=True))
