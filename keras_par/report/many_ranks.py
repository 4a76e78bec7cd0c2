"""What the page shows of very many ranks: those that matter by themselves, the others together; a file has all."""

import csv
from pathlib import Path

from keras_par.report import measures
from keras_par.report.progress import PHASES, Progress
from keras_par.report.run_folder import Run

MOST_RANKS = 64  # in tables, bars and curves
MOST_NAMED = 8  # of the fastest ranks, and of those that failed or hung


def is_many(run: Run) -> bool:
    """True if not all ranks are shown."""
    return len(run.progress) > MOST_RANKS


def shown(run: Run) -> dict[int, Progress]:
    """The ranks of tables and bars: of very many the first and last, those in trouble, the slowest, some fast."""
    if not is_many(run):
        return run.progress
    ranks = list(run.progress)
    trouble = [event.rank for event in run.events if event.kind in ("crash", "hang") and event.rank in run.progress]
    order = [time.rank for time in measures.ranking(run)]
    wanted = [ranks[0], ranks[-1], *reversed(trouble[-MOST_NAMED:]), *order[-MOST_NAMED:], *order, *ranks]
    return {rank: run.progress[rank] for rank in sorted(list(dict.fromkeys(wanted))[:MOST_RANKS])}


def write_table(run: Run, path: Path) -> None:
    """Writes a line for each rank, as CSV.

    Raises:
        OSError: the file cannot be written.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        seconds = [f"{phase} s" for phase in PHASES]
        table.writerow(["rank", "host", "steps", "own ms a step", *seconds, "median step ms", "peak memory bytes"])
        for rank, progress in run.progress.items():
            own = 1000 * measures.own(progress) / progress.steps if progress.steps else 0.0
            times = progress.step_times
            median = 1000 * measures.percentile(times, 0.5) if times else 0.0
            spent = [f"{value:.3f}" for value in progress.seconds.values()]
            about = [rank, run.hosts.get(rank, ""), progress.steps]
            table.writerow([*about, f"{own:.3f}", *spent, f"{median:.3f}", progress.peak_rss])
