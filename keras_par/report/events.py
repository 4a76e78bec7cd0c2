"""What happened to the run: its events as a timeline and as rows of a table."""

import itertools
from dataclasses import dataclass

from matplotlib.axes import Axes

from keras_par.report import measures, number_format
from keras_par.report.run_folder import Event, Run
from keras_par.report.svg import Chart, colour, draw

WIDTH, MOST_KINDS = 940, 12
MOST_EVENTS, MOST_STACKS = 200, 8
MARKS = {"crash": "X", "hang": "s", "interrupt": "D", "warning": "v", "restart": ">", "resume": "^", "recovered": "P"}
TONES = {"crash": "bad", "hang": "bad", "interrupt": "warn", "warning": "warn", "recovered": "good", "end": "good"}


@dataclass(frozen=True)
class EventRow:
    """A row of the table of events."""

    since: str  # the start
    clock: str
    kind: str
    tone: str
    attempt: int
    rank: str
    text: str
    stacks: list[tuple[str, str]]  # (rank, stack)


def tone(event: Event) -> str:
    """The name of the colour that an event is shown in."""
    return "bad" if event.kind == "end" and event.status else TONES.get(event.kind, "note")


def shown(run: Run) -> list[Event]:
    """What happened; how a world ended is of interest only where there were several."""
    several = sum(event.kind == "world" for event in run.events) > 1
    return [event for event in run.events if several or event.kind != "world"]


def timeline(run: Run) -> Chart:
    """Every event over time, one row for each kind; attempts are shaded in turn."""
    begin, end = measures.span(run)
    unit, divisor = number_format.time_unit(end - begin)
    happened = shown(run)
    kinds = list(dict.fromkeys(event.kind for event in happened))[:MOST_KINDS]
    tones = {event.kind: tone(event) for event in happened}
    borders = [begin, *measures.restart_times(run), end]

    def paint(axes: Axes) -> None:
        for number, (start, stop) in enumerate(itertools.pairwise(borders)):
            shade = 0.16 if number % 2 == 0 else 0.05
            axes.axvspan((start - begin) / divisor, (stop - begin) / divisor, color=colour("faint"), alpha=shade, lw=0)
        for row, kind in enumerate(kinds):
            times = sorted({round((event.time - begin) / divisor, 3) for event in happened if event.kind == kind})
            mark = MARKS.get(kind, "o")
            axes.plot(times, [row] * len(times), mark, color=colour(tones[kind]), markersize=9, linestyle="none")
        axes.set_yticks(range(len(kinds)), [kind[:20] for kind in kinds])
        axes.set_ylim(len(kinds) - 0.4, -0.6)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{unit} since the start")

    svg = draw("timeline", "events over time", (WIDTH, 60 + 30 * len(kinds)), paint)
    return Chart("Events", svg, [("attempts, shaded in turn", "faint")] if len(borders) > 2 else [])


def rows(run: Run) -> list[EventRow]:
    """The rows of the table of events; of very many, the warnings and then the oldest are left out."""
    begin, _ = measures.span(run)
    events = shown(run)
    if len(events) > MOST_EVENTS:
        events = [event for event in events if event.kind != "warning"][-MOST_EVENTS:]
    return [row(event, begin) for event in events]


def row(event: Event, begin: float) -> EventRow:
    """One row; `begin` is when the run started, in unix seconds. The stack of the event's own rank comes first."""
    stacks = sorted(event.stacks.items(), key=lambda item: item[0] != str(event.rank))[:MOST_STACKS]
    return EventRow(
        since=number_format.duration(max(event.time - begin, 0.0)),
        clock=number_format.clock(event.time),
        kind=event.kind,
        tone=tone(event),
        attempt=event.attempt,
        rank="" if event.rank is None else str(event.rank),
        text=number_format.clipped(event.text),
        stacks=[(rank, number_format.clipped(stack)) for rank, stack in stacks],
    )
