"""How an attempt ended: what its last panel says, and what the next attempt must know."""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from keras_par.agent.states import Exit
from keras_par.launch.culprit import FEW, failed_alike, named

THREADS = "pthread_create"  # which failed, TensorFlow says before it aborts
UNGUARDED = "finished its bootstrapping phase"  # multiprocessing's, of a process that would start others at once


def title(first: Exit, ended: Mapping[int, Exit]) -> str:
    """Who failed."""
    if early := left_early(first, ended):
        return f"rank {early[0]} ended before the others"
    is_common = first.on_all_ranks or failed_alike(list(ended.values()))
    return "all ranks failed alike" if is_common else f"rank {first.rank} failed first"


def lines(first: Exit, ended: Mapping[int, Exit]) -> list[str]:
    """What is known about the first failure, and what became of the others."""
    early = left_early(first, ended)
    found = []
    if early:
        who = named(early)
        found.append(
            f"{who[:1].upper()}{who[1:]} ended with status 0 while others went on: all ranks must do the same."
        )
    where = f", {first.place}" if first.place else ""
    found.append(f"Rank {first.rank} on host {first.host} {first.how()}{where}.")
    if first.error:
        found.append(f"Error: {first.error}")
    elif first.last_words and (first.status >= 0 or first.status == -signal.SIGABRT):
        found.append(f"Last words: {first.last_words}")
    if first.user_line:
        found.append(f"Last line of your code: {first.user_line}")
    if (advice := what_to_do(first)) is not None:
        found.append(advice)
    is_common = failed_alike(list(ended.values()))
    others = {} if is_common else {rank: end for rank, end in ended.items() if rank != first.rank}
    if others:
        found.append(f"Then {', '.join(fates(others))}.")
    if first.log:
        found.append(f"Its log: {first.log}")
    return found


def left_early(first: Exit, ended: Mapping[int, Exit]) -> list[int]:
    """The ranks that ended well where another's collective failed because somebody was gone, and nothing else failed.

    Such a rank may stay for a moment to tell the others, so the times of their ends say nothing.
    """
    return [rank for rank, end in ended.items() if first.is_consequence and end.status == 0]


def fates(ended: Mapping[int, Exit]) -> list[str]:
    """How ranks ended; those of many ranks that ended alike together."""
    if len(ended) <= FEW:
        return [f"rank {rank} {other(end)}" for rank, end in ended.items()]
    alike: dict[str, list[int]] = {}
    for rank, end in ended.items():
        alike.setdefault(other(end), []).append(rank)
    return [f"{named(ranks)} {words if len(ranks) == 1 else of_many(words)}" for words, ranks in alike.items()]


def of_many(words: str) -> str:
    return f"were {words.removeprefix('was ')}" if words.startswith("was ") else words


def what_to_do(end: Exit) -> str | None:
    gigabytes = f"{end.rss / 2**30:.1f} GiB"
    if end.out_of_memory:
        return f"It used {gigabytes} a second before: use fewer ranks on this host, or smaller batches."
    if end.status == -signal.SIGKILL:
        return f"Somebody sent SIGKILL, a scheduler maybe; memory did not run out (it used {gigabytes})."
    if THREADS in (end.last_words or ""):
        return "No more threads can start: raise 'ulimit -u' or the container's limit of pids, or use fewer ranks here."
    if UNGUARDED in (end.error or ""):
        return "Put what the script does below 'if __name__ == \"__main__\":', so that processes it starts do not."
    if end.is_fault:
        return "That is a fault in compiled code: of TensorFlow, Horovod, or a library that the script uses."
    return None


def other(end: Exit) -> str:
    if end.was_told:
        return "was ended by the launcher"
    return end.how()


def engine_ended(num_started: int, num_ranks: int, program: str, status: int, output: str) -> list[str]:
    """What is known when the engine ended before all ranks had started, or while they ran."""
    some = f"when {num_started} of {num_ranks} ranks had started"
    when = some if num_started < num_ranks else "while ranks were running"
    said = [line.strip() for line in output.splitlines() if line.strip(" -\n")]
    return [
        f"{program} ended with status {status} {when}. It said:",
        *(said[-12:] or ["nothing"]),
    ]


def interrupted(number: int, stopped: str, seen: str, checkpoint: str, was_sent_to_ranks: bool) -> str:
    """Where a job was that its user ended, or who sent the signal to the ranks, too, and what it goes on from.

    Args:
        number: of the signal.
        stopped: where all ranks stopped together, empty where they did not.
        seen: where a rank was when it was ended.
        checkpoint: the newest, empty for none.
        was_sent_to_ranks: True if the ranks got the signal themselves.
    """
    name = signal.Signals(number).name
    place = f"stopped {stopped} on all ranks, by {name}" if stopped else f"stopped by {name} when a rank was {seen}"
    if was_sent_to_ranks:
        place = f"stopped where each rank was, as the ranks got {name} themselves"
    kept = f"the newest checkpoint is {checkpoint}" if checkpoint else "no checkpoint was written"
    return f"{place}; {kept}"


def finished(num_ranks: int, seconds: float, folder: Path | None) -> str:
    """How a job ended well."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    lasted = f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    logs = f"; logs: {folder}" if folder else ""
    return f"{num_ranks} rank{'s' if num_ranks > 1 else ''} finished in {lasted}{logs}"


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Args:
        status: its exit status.
        why: in words.
        lost: hosts with agents that are gone, each with the folder of the engine there, if that is known.
        refused: a host that cannot take part, None if all can.
        killed: the host whose rank was ended by a signal first, None if that was not what happened.
        is_change: True if it was ended for another world.
    """

    status: int
    why: str
    lost: Mapping[str, str | None] = field(default_factory=dict)
    refused: str | None = None
    killed: str | None = None
    is_change: bool = False
