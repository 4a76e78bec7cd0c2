"""The sections of the page: each has charts and a table, or says what is missing for them."""

from keras_par.base.sizes import size, unit_of
from keras_par.report import bars, many_ranks, measures, metric_charts, number_format, time_charts
from keras_par.report.parts import Bar, Section, Table
from keras_par.report.progress import PHASES
from keras_par.report.run_folder import Run

MOST_METRICS = 13
COMMUNICATION_STRETCHES, SHORTEST_STRETCH = 100, 5.0  # seconds


def sections(run: Run, table: str) -> list[Section]:
    """All sections but the events, in the order of the page; `table` is the name of the file that has all ranks."""
    of_all = many_ranks.of_all(run, table)
    by_rank = [section(run, of_all) for section in (step_times, phases, ranking)]
    return [losses(run), *by_rank, communication(run), memory(run)]


def losses(run: Run) -> Section:
    """What `fit` logged, over steps."""
    names = metric_charts.metric_names(run)
    lead = "What fit logged at the end of each epoch; steps repeated after a restart count again."
    if names[MOST_METRICS:]:
        lead += f" Not drawn: {', '.join(names[MOST_METRICS:])}."
    missing = "" if names else "No epoch ended and no rank noted a loss, so there is no curve."
    return Section(
        "losses",
        "Loss and metrics",
        lead,
        [metric_charts.metric_chart(run, n) for n in names[:MOST_METRICS]],
        missing=missing,
    )


def step_times(run: Run, of_all: str) -> Section:
    """How long steps took, by rank."""
    ranks = {rank: times for rank, progress in many_ranks.shown(run).items() if (times := progress.step_times)}
    lead = (
        "From the beginning of one training step to that of the next, counted in buckets that are 19 % wide. "
        "The first step of an attempt, in which TensorFlow traces the graph, is among them." + of_all
    )
    if not ranks:
        return Section(
            "step-times", "Step times", lead, missing="No rank finished two steps, so there are no step times."
        )
    rows = [
        [
            str(rank),
            f"{times.total():,}",
            *(number_format.step_time(measures.percentile(times, share)) for share in (0.5, 0.95, 0.99)),
            number_format.step_time(measures.edge(max(times) + 1)),
        ]
        for rank, times in ranks.items()
    ]
    table = Table(("rank", "steps timed", "median", "95th percentile", "99th percentile", "longest, up to"), rows)
    return Section("step-times", "Step times", lead, [bars.step_times_chart(ranks)], table=table)


def phases(run: Run, of_all: str) -> Section:
    """What the ranks spent their time on."""
    lead = (
        "script: outside of fit, evaluate and predict. callback: Python within them, between steps. What a step does "
        "inside TensorFlow (data, forward-backward, reduce) is looked up ten times a second, the rest is timed."
        + of_all
    )
    ranks = {rank: progress for rank, progress in many_ranks.shown(run).items() if sum(progress.seconds.values())}
    if not ranks:
        return Section("phases", "Time by phase", lead, missing="No rank noted how it spent its time.")
    rows = []
    for rank, progress in ranks.items():
        total = sum(progress.seconds.values())
        shares = [number_format.percent(progress.seconds[phase] / total) for phase in PHASES]
        rows.append([str(rank), run.hosts.get(rank, ""), number_format.duration(total), *shares])
    return Section(
        "phases",
        "Time by phase",
        lead,
        [bars.phases_chart(ranks)],
        table=Table(("rank", "host", "time", *PHASES), rows),
    )


def ranking(run: Run, of_all: str) -> Section:
    """Which rank the others wait for."""
    lead = (
        "A rank's own time per step: its data, forward-backward and callback time, divided by its training steps. "
        "Reduce is left out, since in it every rank waits for the slowest one." + of_all
    )
    ranks, shown = measures.ranking(run), many_ranks.shown(run)
    if not ranks:
        return Section("ranking", "Slow ranks", lead, missing="No rank finished a step, so none can be called slow.")
    longest, fastest = ranks[0].total or 1.0, ranks[-1].total
    rows: list[list[str | Bar]] = []
    for time in (each for each in ranks if each.rank in shown):
        bar = Bar([(phase, 100 * time.seconds[phase] / longest) for phase in measures.OWN])
        more = f"+{number_format.percent(time.total / fastest - 1)}" if time is not ranks[-1] and fastest else "fastest"
        parts = [number_format.step_time(time.seconds[phase]) for phase in measures.OWN]
        rows.append(
            [str(time.rank), run.hosts.get(time.rank, ""), bar, number_format.step_time(time.total), more, *parts]
        )
    columns = ("rank", "host", "", "own time per step", "against the fastest", *measures.OWN)
    charts = [many_ranks.spread_chart(ranks)] if many_ranks.is_many(run) else []
    legend = [(phase, phase) for phase in measures.OWN]
    return Section("ranking", "Slow ranks", lead, charts, legend, table=Table(columns, rows))


def communication(run: Run) -> Section:
    """How the share of reducing changed."""
    begin, end = measures.span(run)
    window = max((end - begin) / COMMUNICATION_STRETCHES, SHORTEST_STRETCH)
    lead = (
        f"Share of reduce in the time in fit, evaluate and predict, over stretches of "
        f"{number_format.duration(window)}. It includes waiting for slower ranks."
    )
    shares = {r: list(measures.communication_over_time(progress, window)) for r, progress in run.progress.items()}
    chart = time_charts.time_chart(
        run, "communication", "communication share", shares, lambda share: f"{100 * share:g} %"
    )
    missing = "" if chart else f"No rank was in a step for {number_format.duration(window)}, so there is no curve."
    return Section("communication", "Communication over time", lead, [chart] if chart else [], missing=missing)


def memory(run: Run) -> Section:
    """How much memory each rank's process held."""
    peaks = {rank: progress.peak_rss for rank, progress in run.progress.items() if progress.peak_rss}
    lead = "Resident memory of each rank's process."
    if not peaks:
        return Section("memory", "Memory", lead, missing="No rank noted its memory.")
    most = max(peaks, key=peaks.__getitem__)
    unit, divisor = unit_of(peaks[most])
    held = {rank: time_charts.memory(run.progress[rank], divisor) for rank in peaks}
    chart = time_charts.time_chart(run, "memory", f"resident memory, {unit}", held, lambda value: f"{value:g}")
    lead += f" The most was {size(peaks[most])}, on rank {most}."
    return Section("memory", "Memory", lead, [chart] if chart else [])
