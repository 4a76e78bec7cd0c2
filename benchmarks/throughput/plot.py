"""Makes a page of the throughput of all systems beside the bound."""

from pathlib import Path

from benchmarks.throughput.results import BOUND, ratio
from benchmarks.throughput.systems import SYSTEMS
from keras_par.base.html_page import page


def draw(results: list, path: Path) -> None:
    """A table with bars for each workload: each system's rows/s as a share of the bound's."""
    found = [result for result in results if result.seconds]
    bounds = {result.workload: result for result in found if result.system == BOUND}
    shares: dict[str, list[tuple[str, float]]] = {workload: [] for workload in bounds}
    for system in SYSTEMS:
        for result in found:
            if result.system == system not in (BOUND, "reduction"):
                share = ratio(result, bounds[result.workload])
                shares[result.workload].append((SYSTEMS[system].title, share))
    path.write_text(page(Path(__file__).with_name("plot.html.j2"), {"workloads": shares}), encoding="utf-8")
