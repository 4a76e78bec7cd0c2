"""The charts by rank: time by phase and distribution of step times."""

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from keras_par.report import measures, number_format
from keras_par.report.progress import PHASES, Progress
from keras_par.report.svg import Chart, colour, draw

WIDTH = 940


def row_height(count: int) -> int:
    """Pixels for each of `count` rows."""
    return 34 if count <= 8 else 24 if count <= 16 else 16


def phases_chart(ranks: dict[int, Progress]) -> Chart:
    """Stacked bars of each rank's seconds by phase."""
    longest = max(sum(progress.seconds.values()) for progress in ranks.values())
    unit, divisor = number_format.time_unit(longest)

    def paint(axes: Axes) -> None:
        rows = range(len(ranks))
        left = [0.0] * len(ranks)
        for phase in PHASES:
            widths = [progress.seconds[phase] / divisor for progress in ranks.values()]
            axes.barh(rows, widths, 0.72, left, color=colour(phase), edgecolor=colour("paper"), linewidth=0.8)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        name_rows(axes, list(ranks))
        axes.set_xlabel(unit)

    svg = draw("phases", "time by phase, by rank", (WIDTH, 60 + row_height(len(ranks)) * len(ranks)), paint)
    return Chart("Time by phase", svg, [(phase, phase) for phase in PHASES])


def name_rows(axes: Axes, ranks: list[int]) -> None:
    """Labels the rows with ranks, the first on top."""
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_ylim(len(ranks) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)


def step_times_chart(histograms: dict[int, Counter[int]]) -> Chart:
    """For each rank the outline of its histogram, with the median and the 99th percentile marked."""
    low = measures.edge(min(min(histogram) for histogram in histograms.values()) - 1)
    high = measures.edge(max(max(histogram) for histogram in histograms.values()) + 2)

    def paint(axes: Axes) -> None:
        for row, histogram in enumerate(histograms.values()):
            buckets, most = range(min(histogram), max(histogram) + 1), max(histogram.values())
            edges = [measures.edge(bucket) for bucket in (*buckets, buckets.stop)]
            tops = [row + 0.36 - 0.8 * histogram[bucket] / most for bucket in buckets]
            axes.stairs(tops, edges, baseline=row + 0.36, fill=True, color=colour("train"), alpha=0.3)
            axes.stairs(tops, edges, baseline=row + 0.36, color=colour("train"), linewidth=1.0)
            for share, mark in ((0.5, "|"), (0.99, "d")):
                place = measures.percentile(histogram, share)
                axes.plot(place, row + 0.36, mark, color=colour("validation"), markersize=9 if mark == "|" else 5)
        name_rows(axes, list(histograms))
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(FixedLocator(ticks(low, high, 9)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda value, _: number_format.tick(value))
        axes.set_xlabel("time of a step")

    size = (WIDTH, 60 + max(row_height(len(histograms)), 20) * len(histograms))
    legend = [("share of steps", "train"), ("| median, ◆ 99th percentile", "validation")]
    return Chart("Step times", draw("step-times", "distribution of step times, by rank", size, paint), legend)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round step times from `low` to `high`, as many as there is room for."""
    decades = range(-6, 4)
    for leading in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [lead * 10.0**decade for decade in decades for lead in leading]
        inside = [place for place in found if low <= place <= high]
        if len(inside) <= most:
            return inside
    return inside[::2]
