"""What a run wrote into its folder, as dataclasses; whatever is missing or damaged is noted and left out."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_par.base.regular_file import opened
from keras_par.report import fields
from keras_par.report.fields import UNREADABLE, read_lines
from keras_par.report.progress import Progress, most_samples, parse_sample

MOST_RANKS = 100_000
MOST_BYTES = 2**26  # of run.json
VERSIONS = ("tensorflow", "keras", "horovod")  # that ranks tell of


@dataclass(frozen=True)
class Event:
    """Something that happened to the run, in a sentence for people."""

    time: float  # unix seconds
    attempt: int
    kind: str
    rank: int | None
    text: str
    stacks: dict[str, str]
    status: int | None
    content: dict[str, Any]  # of its line, not looked at


@dataclass(frozen=True)
class EpochLogs:
    """What `fit` logged at the end of an epoch, of the whole job."""

    attempt: int
    epoch: int  # from 0
    steps: int  # since the start of the attempt
    logs: dict[str, float]


@dataclass
class Run:
    """All that is known of a run."""

    command: list[str] = field(default_factory=list)
    engine: str = ""
    num_ranks: int = 0
    hosts: dict[int, str] = field(default_factory=dict)
    started: float | None = None  # unix seconds
    versions: dict[str, str] = field(default_factory=dict)
    strategies: dict[str, str] = field(default_factory=dict)  # by the model's name
    sums: list[str] = field(default_factory=list)  # which way sums over ranks went, in sentences
    events: list[Event] = field(default_factory=list)
    epochs: list[EpochLogs] = field(default_factory=list)
    progress: dict[int, Progress] = field(default_factory=dict)  # of the ranks that noted any
    notes: list[str] = field(default_factory=list)  # sentences about what could not be read


def holds_run(folder: Path) -> bool:
    """True if anything in `folder` is a run's."""
    return any((folder / name).exists() for name in ("run.json", "events.jsonl")) or bool(rank_folders(folder))


def rank_folders(folder: Path) -> dict[int, Path]:
    """The folders of the ranks in `folder`, in order."""
    named = {path: re.fullmatch(r"rank\.([0-9]{1,6})", path.name) for path in folder.iterdir()}
    return dict(sorted((int(match[1]), path) for path, match in named.items() if match and path.is_dir()))


def read(folder: Path) -> Run:
    """Reads what there is in `folder`."""
    run = Run()
    read_description(run, folder / "run.json")
    run.events = list(read_lines(folder / "events.jsonl", "events.jsonl", parse_event, run.notes))
    epochs: dict[tuple[int, int], EpochLogs] = {}
    folders = rank_folders(folder)
    for rank, path in folders.items():
        run.num_ranks = max(run.num_ranks, rank + 1)
        for epoch in read_lines(path / "epochs.jsonl", f"{path.name}/epochs.jsonl", parse_epoch, run.notes):
            epochs.setdefault((epoch.attempt, epoch.steps), epoch)  # equal on all ranks, but a kill may cut one's
        for about in read_lines(path / "about.jsonl", f"{path.name}/about.jsonl", parse_about, run.notes):
            run.versions |= about["versions"]
            run.strategies |= {about["model"]: about["strategy"]} if about["model"] else {}
            run.sums += [about["sums"]] if about["sums"] and about["sums"] not in run.sums else []
        progress = Progress(most_samples(len(folders)))
        for sample in read_lines(path / "progress.jsonl", f"{path.name}/progress.jsonl", parse_sample, run.notes):
            progress.add(*sample)
        if progress.last:
            run.progress[rank] = progress
    run.epochs = [epochs[key] for key in sorted(epochs)]
    return run


def read_description(run: Run, path: Path) -> None:
    """Fills in what run.json says, as much of it as can be read."""
    try:
        with opened(path, MOST_BYTES) as file:
            content = json.loads(file.read())
        run.num_ranks = fields.count(content["num_ranks"], MOST_RANKS)
        run.started = fields.moment(content["started"])
        run.command = [fields.text(part) for part in content["command"]]
        run.engine = fields.text(content["engine"])
        run.hosts = {int(rank): fields.text(host) for rank, host in content["hosts"].items()}
        run.versions = {name: fields.text(content[name]) for name in ("keras_par", "python") if name in content}
    except FileNotFoundError:
        run.notes.append("There is no run.json, so command, engine and hosts are not known.")
    except (OSError, *UNREADABLE) as error:
        run.notes.append(f"run.json could not be understood ({type(error).__name__}), so part of the head is missing.")


def parse_about(line: dict[str, Any]) -> dict[str, Any]:
    """What a rank has told about itself from its line; raises one of UNREADABLE if it is none."""
    versions = {name: fields.text(version) for name, version in line.get("versions", {}).items() if name in VERSIONS}
    return {"versions": versions, **{name: fields.text(line.get(name, "")) for name in ("model", "strategy", "sums")}}


def parse_event(line: dict[str, Any]) -> Event:
    """An event from its line; raises one of UNREADABLE if it is none."""
    rank, status = line.get("rank"), line.get("status")
    return Event(
        time=fields.moment(line["time"]),
        attempt=fields.count(line.get("attempt", 0)),
        kind=fields.text(line["event"]),
        rank=None if rank is None else fields.count(rank),
        text=fields.text(line.get("text") or ""),
        stacks={fields.text(rank): fields.text(stack) for rank, stack in (line.get("stacks") or {}).items()},
        status=None if status is None else int(fields.figure(status)),
        content=line,
    )


def parse_epoch(line: dict[str, Any]) -> EpochLogs:
    """An epoch's logs from their line, without metrics that are arrays; raises one of UNREADABLE if they are none."""
    scalars = {name: value for name, value in line["logs"].items() if not isinstance(value, list)}
    return EpochLogs(
        attempt=fields.count(line.get("attempt", 0)),
        epoch=fields.count(line["epoch"]),
        steps=fields.count(line["steps"]),
        logs={fields.text(name): fields.figure(value) for name, value in scalars.items()},
    )
