"""The charts of the loss and of what else was logged, over steps."""

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from keras_par.report import many_ranks, measures, number_format
from keras_par.report.curves import HALF, POINTS, WIDE, Curve, Point, mark_restarts, plot
from keras_par.report.fields import is_plottable
from keras_par.report.run_folder import Run
from keras_par.report.svg import Chart, colour, draw


def metric_names(run: Run) -> list[str]:
    """The names that were logged, the loss first, each without its twin of validation."""
    logged = {name: None for epoch in run.epochs for name in epoch.logs}
    plain = [name for name in logged if not (name.startswith("val_") and name[4:] in logged)]
    if "loss" not in plain and sampled_losses(run):
        plain.append("loss")
    return sorted(plain, key=lambda name: name != "loss")


def logged(run: Run, name: str) -> Curve:
    """For each attempt the (steps, value) of a logged name at the ends of epochs."""
    before = measures.steps_before(run)
    found: dict[int, list[Point]] = {}
    for epoch in run.epochs:
        if name in epoch.logs:
            found.setdefault(epoch.attempt, []).append((before[epoch.attempt] + epoch.steps, epoch.logs[name]))
    return list(found.values())


def sampled_losses(run: Run) -> list[Curve]:
    """For each rank that noted any, the (steps, mean of its rows so far in the epoch)."""
    before = measures.steps_before(run)
    curves = []
    for progress in run.progress.values():
        pieces: dict[int, list[Point]] = {}
        for sample in progress.curve():
            if sample.loss is not None and is_plottable(sample.loss) and sample.steps:
                pieces.setdefault(sample.attempt, []).append((before[sample.attempt] + sample.steps, sample.loss))
        curves.append(list(pieces.values()))
    return [curve for curve in curves if curve]


def metric_chart(run: Run, name: str) -> Chart:
    """The chart of one logged name with its twin of validation; the loss also with what each rank noted."""
    train, validation = logged(run, name), logged(run, f"val_{name}")
    ranks = sampled_losses(run) if name == "loss" else []
    restarts = sorted({steps for steps in measures.steps_before(run).values() if steps})
    lines = [[[point for point in piece if is_plottable(point[1])] for piece in curve] for curve in (train, validation)]
    values = [value for curve in lines for piece in curve for _, value in piece]
    dropped = sum(map(len, train + validation)) - len(values)

    def paint(axes: Axes) -> None:
        if len(ranks) > many_ranks.MOST_RANKS:
            many_ranks.paint_band(axes, ranks)
        for curve in ranks if len(ranks) <= many_ranks.MOST_RANKS else []:
            plot(axes, curve, POINTS // len(ranks), color=colour("faint"), linewidth=0.9, alpha=0.55)
        for curve, kind, line in zip(lines, ("train", "validation"), ("-", (0, (5, 2))), strict=True):
            plot(axes, curve, POINTS // 12, color=colour(kind), linestyle=line)
        show_range(axes, values, [value for curve in ranks for piece in curve for _, value in piece])
        mark_restarts(axes, restarts)
        axes.set_title(" ".join(name[:50].split()))
        axes.set_xlabel("steps")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(8 if name == "loss" else 4, integer=True))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    legend = [("training", "train")] if any(lines[0]) else []
    legend += [("validation", "validation")] if any(lines[1]) else []
    each = "each rank's" if len(ranks) <= many_ranks.MOST_RANKS else "from the lowest to the highest rank's"
    legend += [(f"{each} own rows, mean of the epoch so far", "faint")] if ranks else []
    left_out = number_format.plural(dropped, "value")
    note = f"{left_out} of {name} {'is' if dropped == 1 else 'are'} not finite and not drawn."
    size = WIDE if name == "loss" else HALF
    svg = draw(f"metric-{name}", f"{name} over steps", size, paint) if values or ranks else Markup("")
    return Chart(name, svg, legend, note if dropped else "")


def show_range(axes: Axes, values: list[float], faint: list[float]) -> None:
    """Shows `values`, and `faint` but for extremes that are far off; on a log scale if they span a factor of 100."""
    faint = sorted(faint)
    cut = len(faint) // 50
    shown = values + faint[cut : len(faint) - cut]
    if not shown:
        return
    low, high = min(shown), max(shown)
    if low > 0 and high > 100 * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    elif high > low:
        if faint and faint[-1] - faint[0] < 2 * (high - low):
            low, high = min(low, faint[0]), max(high, faint[-1])
        axes.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))
