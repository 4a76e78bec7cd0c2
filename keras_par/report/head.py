"""What the page says of a run without numbers: what ran, how it ended, and its events."""

from dataclasses import dataclass
from pathlib import PurePath

from keras_par.report import measures, number_format
from keras_par.report.run_folder import Event, Run

MOST_EVENTS, MOST_STACKS = 200, 8
TONES = {"crash": "bad", "hang": "bad", "interrupt": "warn", "warning": "warn", "recovered": "good", "end": "good"}


@dataclass(frozen=True)
class Ending:
    """How the run ended."""

    word: str
    tone: str  # the name of a colour
    sentence: str


def title(run: Run) -> str:
    """The script's name, else the command's, else "a run"."""
    scripts = [part for part in run.command if part.endswith(".py")] or run.command[:1]
    return PurePath(scripts[0]).name if scripts else "a run"


def ending(run: Run) -> Ending:
    """How the run ended, by its last event of kind "end"."""
    ends = [event for event in run.events if event.kind == "end"]
    if not ends:
        return Ending("no end recorded", "warn", "The run still went on when this page was made, or its launcher died.")
    end = ends[-1]
    if end.status == 0:
        return Ending("finished", "good", end.text)
    if {"interrupt", "crash"} & {event.kind for event in of_last_attempt(run)} == {"interrupt"}:
        return Ending("interrupted", "warn", end.text)
    return Ending("failed" if end.status is None else f"failed, exit status {end.status}", "bad", end.text)


def culprit(run: Run) -> Event | None:
    """What the last attempt failed by: its first crash, else its last hang that is not over; None if it finished."""
    events = of_last_attempt(run)
    if any(event.kind == "end" and event.status == 0 for event in events):
        return None
    hangs: dict[int | None, Event] = {}
    for event in events:
        if event.kind == "hang":
            hangs[event.rank] = event
        elif event.kind == "recovered":
            hangs.pop(event.rank, None)
    return next((event for event in events if event.kind == "crash"), next(reversed(hangs.values()), None))


def of_last_attempt(run: Run) -> list[Event]:
    """The events of the attempt that was last heard of."""
    return [event for event in run.events if event.attempt == run.events[-1].attempt]


def facts(run: Run) -> list[tuple[str, str]]:
    """What ran where, when and for how long, as pairs of a name and what is known of it."""
    begin, end = measures.span(run)
    hosts = sorted(set(run.hosts.values()))
    restarts = max(len(measures.attempts(run)) - 1, sum(event.kind == "restart" for event in run.events))
    ended = any(event.kind == "end" for event in run.events)
    versions = {"keras_par": "keras-par", "python": "Python"}
    versions |= {"tensorflow": "TensorFlow", "keras": "Keras", "horovod": "Horovod"}
    strategies = [f"{strategy} ({model})" for model, strategy in run.strategies.items()]
    found = [
        ("ranks", f"{run.num_ranks:,}" if run.num_ranks else ""),
        ("engine", {"mpi": "MPI", "gloo": "Gloo", "tensorflow": "TensorFlow"}.get(run.engine, run.engine)),
        ("host" if len(hosts) == 1 else f"{len(hosts)} hosts", ", ".join(hosts[:8]) + (" ..." if hosts[8:] else "")),
        ("started", number_format.date(begin) if begin else ""),
        ("took" if ended else "lasted at least", number_format.duration(end - begin) if begin else ""),
        ("restarts", f"{restarts:,}"),
        (
            "ETTR",
            number_format.percent(share) if restarts and (share := measures.trained_share(run)) is not None else "",
        ),
        ("strategy", ", ".join(strategies[:4]) + (", ..." if strategies[4:] else "")),
        ("sums", " ".join(run.sums[:4])),
        ("versions", ", ".join(f"{versions[name]} {version}" for name, version in run.versions.items())),
    ]
    return [(name, value) for name, value in found if value]


def tone(event: Event) -> str:
    """The name of the colour that an event is shown in."""
    return "bad" if event.kind == "end" and event.status else TONES.get(event.kind, "note")


def shown(run: Run) -> list[Event]:
    """What happened; how a world ended is of interest only where there were several."""
    several = sum(event.kind == "world" for event in run.events) > 1
    return [event for event in run.events if several or event.kind != "world"]


def rows(events: list[Event]) -> list[Event]:
    """Those of the table: of very many, the warnings and then the oldest are left out."""
    if len(events) > MOST_EVENTS:
        events = [event for event in events if event.kind != "warning"][-MOST_EVENTS:]
    return events


def stacks(event: Event) -> list[tuple[str, str]]:
    """The (rank, stack) of an event, of very many some; that of its own rank comes first."""
    return sorted(event.stacks.items(), key=lambda item: item[0] != str(event.rank))[:MOST_STACKS]
