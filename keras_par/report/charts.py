"""The charts of the page, as what its script draws: curves of few enough points that the page stays small."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from keras_par.base.sizes import unit_of
from keras_par.report import many_ranks, measures
from keras_par.report.fields import is_plottable
from keras_par.report.head import tone
from keras_par.report.number_format import plural
from keras_par.report.progress import Sample
from keras_par.report.run_folder import Event, Run

Point = tuple[float, float]
Curve = list[list[Point]]  # in pieces, one an attempt
POINTS, LINE_POINTS = 12_000, 1000  # of all lines of a chart; of one
COLOURS = 6  # of ranks; of more, only the highest and the lowest have one
MOST_METRICS, MOST_KINDS = 13, 12
BINS = 100  # of the stretches over which very many curves become a band


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`.

    Args:
        label: what it shows.
        low: where it begins.
        high: where it ends; above `low`.
        unit: how `page.js` writes its numbers: "number", "percent", "duration" (of seconds) or "clock" (the same).
        is_log: on a log scale.
        rows: names of the places 0, 1, ... in place of numbers.
    """

    label: str
    low: float
    high: float
    unit: str = "number"
    is_log: bool = False
    rows: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """A curve with its name; `kind` is one of KINDS of `page.js`, `colour` a name of the page's style."""

    label: str
    colour: str
    curve: Curve
    kind: str = "line"


@dataclass(frozen=True)
class Chart:
    """Lines over the same axes.

    Args:
        title: above it, and read out in place of the picture.
        x: what lies to the right; `y`: upwards.
        lines: those that are drawn first come first.
        restarts: where on the x axis the run was restarted.
        note: a sentence below it.
    """

    title: str
    x: Axis
    y: Axis
    lines: list[Line]
    restarts: list[float] = field(default_factory=list)
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """What the page's script reads: of each line the x and the y, with None for a gap between two pieces."""
        limit = min(POINTS // max(len(self.lines), 1), LINE_POINTS)
        lines = [
            {"label": each.label, "colour": each.colour, "kind": each.kind, "points": columns(each.curve, limit)}
            for each in self.lines
        ]
        return {"x": asdict(self.x), "y": asdict(self.y), "lines": lines, "restarts": self.restarts}


def columns(curve: Curve, limit: int) -> tuple[list[float], list[float | None]]:
    """The x and the y of about `limit` of a curve's points."""
    xs: list[float] = []
    ys: list[float | None] = []
    for piece in filter(None, curve):
        thinned = thin(piece, max(limit // len(curve), 2))
        if xs:
            xs.append((xs[-1] + thinned[0][0]) / 2)
            ys.append(None)
        xs += [float(f"{x:.7g}") for x, _ in thinned]
        ys += [float(f"{y:.5g}") for _, y in thinned]
    return xs, ys


def thin(points: list[Point], limit: int) -> list[Point]:
    """At most about `limit` of `points`, the last among them."""
    stride = -(-len(points) // limit)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def values_of(curves: Iterable[Curve]) -> list[float]:
    return [y for curve in curves for piece in curve for _, y in piece]


def crowd(curves: dict[int, Curve]) -> list[Line]:
    """A faint line a rank, or a band from the lowest to the highest with the median, where they are very many."""
    if len(curves) <= many_ranks.MOST_RANKS:
        return [Line(f"rank {rank}", "faint", curve, "faint") for rank, curve in curves.items()]
    x, low, middle, high = zip(*band([*curves.values()]), strict=True)
    edges = {"highest rank": (high, "high"), "lowest rank": (low, "low"), "median rank": (middle, "line")}
    return [Line(name, "faint", [[*zip(x, y, strict=True)]], kind) for name, (y, kind) in edges.items()]


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


def of_ranks(curves: dict[int, Curve], levels: dict[int, float]) -> list[Line]:
    """A line for each rank; of more than six all are faint but those of the highest and of the lowest level."""
    if len(curves) <= COLOURS:
        return [Line(f"rank {rank}", f"rank-{n}", curve) for n, (rank, curve) in enumerate(sorted(curves.items()))]
    low, high = min(curves, key=levels.__getitem__), max(curves, key=levels.__getitem__)
    others = {rank: curve for rank, curve in curves.items() if rank not in (low, high)}
    ends = (low, "the lowest", "rank-0"), (high, "the highest", "rank-1")
    return [*crowd(others), *(Line(f"rank {rank}, {how}", colour, curves[rank]) for rank, how, colour in ends)]


def of_samples(run: Run, point: Callable[[int, Sample], Point | None]) -> dict[int, Curve]:
    """The curve of each rank's samples; `point` is given an attempt and a sample."""
    return {
        rank: [[at for each in samples if (at := point(number, each))] for number, samples in progress.curves().items()]
        for rank, progress in run.progress.items()
    }


def over_time(run: Run, title: str, curves: dict[int, Curve], unit: str = "number") -> Chart | None:
    """A line a rank, over (unix seconds, value); None if there is nothing to draw."""
    begin, _ = measures.span(run)
    placed = {
        rank: [[(time - begin, value) for time, value in piece] for piece in curve]
        for rank, curve in curves.items()
        if any(curve)
    }
    if not placed:
        return None
    levels = {rank: statistics.fmean(values_of([curve])) for rank, curve in placed.items()}
    y = Axis(title, 0.0, 1.05 * max(values_of(placed.values())) or 1.0, unit)
    restarts = [time - begin for time in measures.restart_times(run)]
    return Chart(f"{title} over time, by rank", time_axis(run), y, of_ranks(placed, levels), restarts)


def communication(run: Run) -> Chart | None:
    """The share of reducing, of each rank; None if there is nothing to draw."""
    window = measures.communication_window(run)
    shares = {rank: [*measures.communication_over_time(each, window)] for rank, each in run.progress.items()}
    return over_time(run, "communication share", shares, "percent")


def memory(run: Run) -> Chart | None:
    """The resident memory of each rank's process; None if there is nothing to draw."""
    unit, divisor = unit_of(max((progress.peak_rss for progress in run.progress.values()), default=0))
    held = of_samples(run, lambda _, sample: (sample.time, sample.rss / divisor) if sample.rss else None)
    return over_time(run, f"resident memory, {unit}", held)


def time_axis(run: Run) -> Axis:
    begin, end = measures.span(run)
    return Axis("time since the start", 0.0, (end - begin) or 1.0, "clock")


def step_times(histograms: dict[int, Counter[int]]) -> Chart:
    """The distribution of each rank's step times."""
    curves, ends = {}, set()
    for rank, times in histograms.items():
        buckets = range(min(times) - 1, max(times) + 2)
        ends |= {buckets.start, buckets.stop}
        curves[rank] = [[(measures.edge(each + 0.5), times[each] / times.total()) for each in buckets]]
    levels = {rank: measures.percentile(times, 0.5) for rank, times in histograms.items()}
    x = Axis("time of a step", measures.edge(min(ends)), measures.edge(max(ends)), "duration", is_log=True)
    y = Axis("share of steps", 0.0, 1.05 * max(values_of(curves.values())), "percent")
    return Chart("distribution of step times, by rank", x, y, of_ranks(curves, levels))


def spread(times: list[measures.OwnTime]) -> Chart:
    """How many ranks take which time of their own for a step."""
    low, high = times[-1].total, times[0].total
    width = (high - low) / 60 or 1e-6
    counts = Counter(int((time.total - low) / width) for time in times)
    points = [(low + (number + 0.5) * width, float(counts[number])) for number in sorted(counts)]
    x, y = (
        Axis("own time per step", low - width, high + 2 * width, "duration"),
        Axis("ranks", 0.5, 2.0 * len(times), is_log=True),
    )
    return Chart("own time per step, of all ranks", x, y, [Line("ranks", "forward-backward", [points], "dots")])


def events(run: Run, happened: list[Event]) -> Chart:
    """Every event over time, one row for each kind, the first on top."""
    begin, _ = measures.span(run)
    kinds = list(dict.fromkeys(event.kind for event in happened))[:MOST_KINDS][::-1]
    tones = {event.kind: tone(event) for event in happened}
    times = {kind: sorted({max(each.time - begin, 0.0) for each in happened if each.kind == kind}) for kind in kinds}
    names = [" ".join(kind[:20].split()) for kind in kinds]
    lines = [
        Line(name, tones[kind], [[(time, float(row)) for time in times[kind]]], "dots")
        for row, (kind, name) in enumerate(zip(kinds, names, strict=True))
    ]
    y = Axis("", -0.6, len(kinds) - 0.4, rows=names)
    restarts = [time - begin for time in measures.restart_times(run)]
    return Chart("events over time", time_axis(run), y, lines, restarts)


def metrics(run: Run) -> tuple[list[Chart], list[str]]:
    """What was logged and noted over steps, the loss first, and the names that are too many to be drawn."""
    names = metric_names(run)
    return [metric(run, name) for name in names[:MOST_METRICS]], names[MOST_METRICS:]


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


def sampled_losses(run: Run) -> dict[int, Curve]:
    """For each rank that noted any, the (steps, mean of its rows so far in the epoch)."""
    before = measures.steps_before(run)

    def point(attempt: int, sample: Sample) -> Point | None:
        if sample.loss is None or not is_plottable(sample.loss) or not sample.steps:
            return None
        return before[attempt] + sample.steps, sample.loss

    return {rank: curve for rank, curve in of_samples(run, point).items() if any(curve)}


def metric(run: Run, name: str) -> Chart:
    """One logged name with its twin of validation; the loss also with what each rank noted."""
    every = {"training": logged(run, name), "validation": logged(run, f"val_{name}")}
    lines = {
        label: [[point for point in piece if is_plottable(point[1])] for piece in curve]
        for label, curve in every.items()
    }
    values, ranks = values_of(lines.values()), sampled_losses(run) if name == "loss" else {}
    dropped = len(values_of(every.values())) - len(values)
    note = (
        f"{plural(dropped, 'value')} of {name} {'is' if dropped == 1 else 'are'} not finite and not drawn."
        if dropped
        else ""
    )
    kinds = {"training": ("train", "line"), "validation": ("validation", "dashed")}
    drawn = [Line(label, colour, lines[label], kind) for label, (colour, kind) in kinds.items() if any(lines[label])]
    drawn = [*(crowd(ranks) if ranks else []), *drawn]
    if ranks:
        each = "each rank's" if len(ranks) <= many_ranks.MOST_RANKS else "from the lowest to the highest rank's"
        note = f"Grey: {each} own rows, mean of the epoch so far. {note}"
    last = max((x for line in drawn for piece in line.curve for x, _ in piece), default=1.0)
    restarts = sorted({float(steps) for steps in measures.steps_before(run).values() if steps})
    y = around(name, values, values_of(ranks.values()))
    return Chart(f"{name} over steps", Axis("steps", 0.0, last or 1.0), y, drawn, restarts, note)


def around(label: str, values: list[float], faint: list[float]) -> Axis:
    """Shows `values`, and `faint` but for extremes that are far off; on a log scale if they span a factor of 100."""
    faint = sorted(faint)
    cut = len(faint) // 50
    shown = values + faint[cut : len(faint) - cut] or [0.0]
    low, high = min(shown), max(shown)
    if low > 0 and high > 100 * low:
        return Axis(label, low / 1.2, high * 1.2, is_log=True)
    if faint and faint[-1] - faint[0] < 2 * (high - low):
        low, high = min(low, faint[0]), max(high, faint[-1])
    room = (high - low) or abs(high) or 1.0
    return Axis(label, low - 0.05 * room, high + 0.08 * room)
