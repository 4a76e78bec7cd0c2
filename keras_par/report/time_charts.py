"""The charts over time, with a curve for each rank: communication and memory."""

from collections.abc import Callable

from matplotlib.axes import Axes

from keras_par.report import many_ranks, measures, number_format
from keras_par.report.curves import POINTS, WIDE, Curve, mark_restarts, plot
from keras_par.report.progress import Progress
from keras_par.report.run_folder import Run
from keras_par.report.svg import Chart, colour, draw


def time_chart(run: Run, name: str, title: str, curves: dict[int, Curve], unit: Callable[[float], str]) -> Chart | None:
    """A chart of one curve a rank, over (unix seconds, value); None if there is nothing to draw.

    With more than six ranks the one with the highest and the one with the lowest mean are told from the others, which
    are a band where they are very many.
    """
    curves = {rank: curve for rank, curve in curves.items() if any(curve)}
    if not curves:
        return None
    begin, end = measures.span(run)
    time_name, divisor = number_format.time_unit(end - begin)
    styles, legend = rank_styles(curves)
    restarts = [(time - begin) / divisor for time in measures.restart_times(run)]

    def paint(axes: Axes) -> None:
        placed = {rank: placed_in(curve, begin, divisor) for rank, curve in curves.items()}
        if len(curves) > many_ranks.MOST_RANKS:
            many_ranks.paint_band(axes, list(placed.values()))
            placed = {rank: curve for rank, curve in placed.items() if styles[rank][0] != "faint"}
        for rank in sorted(placed, key=lambda rank: styles[rank][1]):
            name, width = styles[rank]
            plot(axes, placed[rank], POINTS // len(placed), color=colour(name), linewidth=width)
        mark_restarts(axes, restarts)
        axes.set_xlim(0, (end - begin) / divisor or 1)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.set_xlabel(f"{time_name} since the start")
        axes.yaxis.set_major_formatter(lambda value, _: unit(value))

    return Chart(title, draw(name, f"{title} over time, by rank", WIDE, paint), legend)


def rank_styles(curves: dict[int, Curve]) -> tuple[dict[int, tuple[str, float]], list[tuple[str, str]]]:
    """For each rank a colour's name and a line width, and the legend."""
    if len(curves) <= 6:
        names = {rank: f"rank-{number}" for number, rank in enumerate(sorted(curves))}
        return {rank: (name, 1.6) for rank, name in names.items()}, [(f"rank {r}", names[r]) for r in sorted(curves)]
    means = {rank: mean(curve) for rank, curve in curves.items()}
    high, low = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    styles = dict.fromkeys(curves, ("faint", 0.9)) | {high: ("rank-1", 1.8), low: ("rank-0", 1.8)}
    legend = [(f"rank {high}, the highest", "rank-1"), (f"rank {low}, the lowest", "rank-0")]
    how = (
        "from the lowest to the highest of all"
        if len(curves) > many_ranks.MOST_RANKS
        else f"the other {len(curves) - 2}"
    )
    return styles, [*legend, (how, "faint")]


def placed_in(curve: Curve, begin: float, divisor: float) -> Curve:
    """A curve over unix seconds as one over the chart's time."""
    return [[((time - begin) / divisor, value) for time, value in piece] for piece in curve]


def mean(curve: Curve) -> float:
    values = [value for piece in curve for _, value in piece]
    return sum(values) / len(values)


def memory(progress: Progress, divisor: float) -> Curve:
    """A rank's (unix seconds, resident bytes / `divisor`)."""
    curve = progress.curve()
    return [
        [(sample.time, sample.rss / divisor) for sample in curve if sample.attempt == attempt and sample.rss]
        for attempt in progress.last
    ]
