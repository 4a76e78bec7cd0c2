"""What the page shows of very many ranks: those that matter by themselves, the others together; a file has all."""

import csv
import statistics
from pathlib import Path

from matplotlib.axes import Axes

from keras_par.report import measures
from keras_par.report.curves import Curve
from keras_par.report.progress import PHASES, Progress
from keras_par.report.run_folder import Run
from keras_par.report.svg import Chart, colour, draw

MOST_RANKS = 64  # in tables, bars and curves
MOST_NAMED = 8  # of the fastest ranks, and of those that failed or hung
BINS, SIZE = 100, (940, 200)


def is_many(run: Run) -> bool:
    """True if not all ranks are shown."""
    return len(run.progress) > MOST_RANKS


def shown(run: Run) -> dict[int, Progress]:
    """The ranks of tables and bars: of very many the first and last, those in trouble, the slowest, some fast."""
    if not is_many(run):
        return run.progress
    ranks = list(run.progress)
    trouble = [event.rank for event in run.events if event.kind in ("crash", "hang") and event.rank in run.progress]
    order = [time.rank for time in measures.ranking(run)]
    wanted = [ranks[0], ranks[-1], *reversed(trouble[-MOST_NAMED:]), *order[-MOST_NAMED:], *order, *ranks]
    return {rank: run.progress[rank] for rank in sorted(list(dict.fromkeys(wanted))[:MOST_RANKS])}


def band(curves: list[Curve]) -> list[tuple[float, float, float, float]]:
    """(x, lowest, median, highest) of all curves' values, over stretches of x."""
    points = [point for curve in curves for piece in curve for point in piece]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    width = (high - low) / BINS or 1.0
    found: dict[int, list[float]] = {}
    for x, value in points:
        found.setdefault(min(int((x - low) / width), BINS - 1), []).append(value)
    stretches = ((low + (number + 0.5) * width, found[number]) for number in sorted(found))
    return [(x, min(values), statistics.median(values), max(values)) for x, values in stretches]


def paint_band(axes: Axes, curves: list[Curve]) -> None:
    """Shades what lies between the lowest and the highest of curves, with their median."""
    x, low, middle, high = zip(*band(curves), strict=True)
    axes.fill_between(x, low, high, color=colour("faint"), alpha=0.3, linewidth=0)
    axes.plot(x, middle, color=colour("faint"), linewidth=1.2)


def spread_chart(times: list[measures.OwnTime]) -> Chart:
    """How many ranks take which time of their own for a step."""
    totals = [1000 * time.total for time in times]

    def paint(axes: Axes) -> None:
        axes.hist(totals, bins=60, color=colour("forward-backward"), log=True)
        axes.set_xlabel("own time per step, ms")
        axes.set_ylabel("ranks")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return Chart("All ranks", draw("spread", "own time per step, of all ranks", SIZE, paint))


def write_table(run: Run, path: Path) -> None:
    """Writes a line for each rank, as CSV.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        seconds = [f"{phase} s" for phase in PHASES]
        table.writerow(["rank", "host", "steps", "own ms a step", *seconds, "median step ms", "peak memory bytes"])
        for rank, progress in run.progress.items():
            own = 1000 * measures.own(progress) / progress.steps if progress.steps else 0.0
            times = progress.step_times
            median = 1000 * measures.percentile(times, 0.5) if times else 0.0
            spent = [f"{value:.3f}" for value in progress.seconds.values()]
            about = [rank, run.hosts.get(rank, ""), progress.steps]
            table.writerow([*about, f"{own:.3f}", *spent, f"{median:.3f}", progress.peak_rss])


def of_all(run: Run, table: str) -> str:
    """Says that not all ranks are shown and where the others are, or that some noted nothing."""
    known = len(run.progress)
    sentences = []
    if is_many(run):
        sentences.append(
            f" Of {known:,} ranks {MOST_RANKS} are shown: the slowest, {MOST_NAMED} fast ones, the first and the last, "
            f"and those that failed or hung. {table} has all."
        )
    silent = [rank for rank in range(run.num_ranks) if rank not in run.progress]
    if known and silent:
        names = ", ".join(map(str, silent[:12])) + (", ..." if silent[12:] else "")
        sentences.append(f" {'Rank' if len(silent) == 1 else 'Ranks'} {names} noted no progress.")
    return "".join(sentences)
