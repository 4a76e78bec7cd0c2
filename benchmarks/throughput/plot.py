"""Draws the throughput of all systems beside the bound."""

from pathlib import Path

from benchmarks.throughput.results import BOUND, ratio
from benchmarks.throughput.systems import SYSTEMS


def draw(results: list, path: Path) -> None:
    """A group of bars for each workload: each system's rows/s as a share of the bound's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [result for result in results if result.seconds]
    bounds = {result.workload: result for result in found if result.system == BOUND}
    workloads = list(bounds)
    systems = [system for system in SYSTEMS if system not in (BOUND, "reduction")]
    figure, axes = pyplot.subplots(figsize=(11, 0.5 + 2.2 * len(workloads)), nrows=len(workloads), squeeze=False)
    for [place], workload in zip(axes, workloads, strict=True):
        shares = {result.system: ratio(result, bounds[workload]) for result in found if result.workload == workload}
        shown = [system for system in systems if system in shares][::-1]
        colors = ["tab:blue" if system.startswith("keras-par") else "silver" for system in shown]
        bars = place.barh(
            [SYSTEMS[system].title for system in shown], [shares[system] for system in shown], color=colors
        )
        place.bar_label(bars, fmt="%.2f", padding=3)
        place.axvline(1, color="black", linewidth=0.8)
        place.set_title(f"{workload}: rows/s as a share of the bound's", loc="left", fontsize=10)
        place.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
