"""What happened to the run: its events and which of very many are shown."""

from keras_par.report.run_folder import Event, Run

MOST_EVENTS, MOST_STACKS = 200, 8
TONES = {"crash": "bad", "hang": "bad", "interrupt": "warn", "warning": "warn", "recovered": "good", "end": "good"}


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
