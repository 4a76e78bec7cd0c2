"""The worlds of a run whose ranks came and went: how long each lasted, why it ended, and what of its time counted."""

import contextlib
from dataclasses import dataclass
from typing import Any

from keras_par.report import fields, measures, words
from keras_par.report.lines import UNREADABLE
from keras_par.report.parts import Section, Table
from keras_par.report.run_folder import Run

MOST_WORLDS, MOST_HOSTS = 100, 8


@dataclass(frozen=True)
class World:
    """One attempt of a run; times are unix seconds."""

    attempt: int
    num_ranks: int
    hosts: list[str]
    began: float
    ended: float
    why: str  # it ended


def worlds(run: Run) -> list[World]:
    """Those that are over, in their order."""
    found = []
    for event in run.events:
        if event.kind == "world":
            with contextlib.suppress(*UNREADABLE):
                found.append(parse(event.attempt, event.time, event.content))
    return found


def parse(attempt: int, ended: float, content: dict[str, Any]) -> World:
    """A world from its event; raises one of UNREADABLE if that is of something else."""
    return World(
        attempt=attempt,
        num_ranks=fields.count(content["num_ranks"]),
        hosts=[fields.text(host) for host in content["hosts"]],
        began=fields.moment(content["began"]),
        ended=ended,
        why=fields.text(content["why"]),
    )


def counted(run: Run) -> dict[int, float]:
    """For each attempt the seconds in which steps were done that counted, as far as was known last."""
    for event in reversed(run.events):
        if "counted" in event.content:
            with contextlib.suppress(*UNREADABLE):
                given = event.content["counted"].items()
                return {int(attempt): fields.number(seconds) for attempt, seconds in given}
    return {}


def steps_lost(run: Run) -> dict[int, int]:
    """For each attempt the steps of earlier ones that it did again."""
    lost: dict[int, int] = {}
    for event in run.events:
        if "steps_lost" in event.content and event.kind == "resume":
            with contextlib.suppress(*UNREADABLE):
                lost[event.attempt] = fields.count(event.content["steps_lost"])
    return lost


def share(run: Run) -> float | None:
    """Of the run's time, the share in which steps were done that counted (ETTR); None if it is not known."""
    begin, end = measures.span(run)
    seconds = sum(counted(run).values())
    return min(seconds / (end - begin), 1.0) if seconds and end > begin else None


def section(run: Run) -> Section:
    """The table of the worlds, of a run that had several."""
    begin, _ = measures.span(run)
    good, lost, found = counted(run), steps_lost(run), worlds(run)
    rows = [
        [
            str(world.attempt + 1),
            f"{world.num_ranks:,}",
            ", ".join(world.hosts[:MOST_HOSTS]) + (", ..." if world.hosts[MOST_HOSTS:] else ""),
            words.duration(max(world.began - begin, 0.0)),
            words.duration(max(world.ended - begin, 0.0)),
            words.duration(good.get(world.attempt, 0.0)),
            f"{lost.get(world.attempt, 0):,}",
            words.clipped(world.why),
        ]
        for world in found[-MOST_WORLDS:]
    ]
    of_all = share(run)
    lead = "The job went on with other ranks, or with the same again; times are counted from the start."
    if of_all is not None:
        lead += f" Steps that counted in the end took {words.percent(of_all)} of the time (ETTR)."
    columns = ("world", "ranks", "hosts", "from", "to", "time that counted", "steps done again", "ended because")
    return Section("worlds", "Worlds", lead, table=Table(columns, rows, frozenset({"hosts", "ended because"})))
