"""Rehearses a job of thousands of ranks: the real launcher hears agents that one process simulates.

    python -m benchmarks agents --ranks 10000

Each scenario is a job of its own. The launcher's processor time and memory are what the system says of its process; the
simulator takes as much of the machine beside it, which figures of seconds contain.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from benchmarks.jobs import environment, part
from benchmarks.simulated_agents import SCENARIOS

EVENT = {"crash": "crash", "deaf": "crash", "hang": "hang", "interrupt": "end", "silent": "crash", "calm": "end"}
SETTLED_SECONDS = 2.0  # after all ranks have started
CPU_GOAL, MEMORY_GOAL, NAMED_GOAL = 2.0, 500e6, 5.0
MOST_SECONDS = 280


@dataclass
class Figures:
    """What one scenario took."""

    scenario: str
    ranks: int
    starts: float  # seconds from the command to the start of all ranks
    named: float  # seconds from the trouble (a hang: from --hang-after later) to the event that names it
    shown: float  # the same, to the first words about it on the terminal
    ends: float  # seconds from the trouble to the launcher's end
    cpu: float | None  # the launcher's processor seconds for each minute of work
    cpu_start: float  # all together, until all had started
    peak: int  # bytes of memory
    status: int
    text: str  # of the event
    sent: dict[str, int] = field(default_factory=dict)  # by agents, by kind
    heard: dict[str, int] = field(default_factory=dict)
    bytes: list[int] = field(default_factory=list)  # sent by agents, and heard
    stops: list[int] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000, help="(%(default)s)")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=SCENARIOS)
    parser.add_argument("--seconds", type=float, default=65.0, help="of work before a calm end (%(default)g)")
    parser.add_argument("--hang-after", type=float, default=20.0, help="(%(default)g)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--launch", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        sys.exit(launch(args, args.launch[0], Path(args.launch[1])))
    found = []
    for scenario in args.scenarios:
        seconds = args.seconds if scenario == "calm" else 5.0
        found.append(rehearse(scenario, args.ranks, seconds, args.hang_after))
    show(found)
    if args.json:
        args.json.write_text(json.dumps([asdict(each) for each in found], indent=2))


def launch(args: argparse.Namespace, scenario: str, folder: Path) -> int:
    """Runs the job, as `keras-par run` does; this process is the launcher."""
    from keras_par.cluster.hosts import Place
    from keras_par.launch.attempts import Attempts, noted_signals
    from keras_par.launch.console import Console
    from keras_par.launch.engines import Plan
    from keras_par.launch.job import Job
    from keras_par.launch.next_world import FixedWorlds
    from keras_par.launch.run_folder import RunFolder

    notes = str(folder.with_suffix(".notes"))
    agents = ["benchmarks.simulated_agents", str(args.ranks), scenario, notes, "--seconds", str(args.seconds)]
    places = tuple(Place(rank, "localhost") for rank in range(args.ranks))
    plan = Plan("mpi", places, (sys.executable, "-m", *agents), {}, None)
    worlds, run_folder, console = FixedWorlds(places), RunFolder(folder), Console()
    hangs = {"hang_after": args.hang_after, "aborts_hang": True}
    with noted_signals() as interrupts:
        job = Job(["simulated"], "mpi", worlds, lambda _: plan, run_folder, console, interrupts, **hangs)
        status = Attempts(job).run()
    console.close()
    return status


def rehearse(scenario: str, ranks: int, seconds: float, hang_after: float = 20.0) -> Figures:
    """One job, and what it took."""
    with tempfile.TemporaryDirectory() as parent:
        folder, log = Path(parent) / "run", Path(parent) / "words"
        options = ["--ranks", ranks, "--seconds", seconds, "--hang-after", hang_after, "--launch", scenario, folder]
        begin, samples, words = time.time(), [], 0.0
        with log.open("wb") as file:
            command = part("agents", *options)
            job = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=file)
        try:
            launcher, is_interrupted = psutil.Process(job.pid), False
            while job.poll() is None:
                samples.append(sample(launcher))
                moments = moments_of(folder)
                if scenario == "interrupt" and "trouble" in moments and not is_interrupted:
                    job.send_signal(signal.SIGINT)
                    is_interrupted = True
                words = words or (time.time() if named_in(log) else 0.0)
                assert time.time() - begin < MOST_SECONDS, log.read_text()
                time.sleep(0.1)
        finally:
            if job.poll() is None:
                job.kill()
        return figures(scenario, ranks, begin, samples, folder, job.returncode, hang_after, words or time.time())


def sample(process: psutil.Process) -> tuple[float, float, int]:
    """(unix seconds, processor seconds, bytes of memory)."""
    try:
        times = process.cpu_times()
        return time.time(), times.user + times.system, process.memory_info().rss
    except psutil.Error:
        return time.time(), 0.0, 0


def named_in(log: Path) -> bool:
    text = log.read_text(errors="replace")
    return "rank" in text and any(sign in text for sign in ("───", "; "))


def moments_of(folder: Path) -> dict[str, dict]:
    notes = folder.with_suffix(".notes")
    lines = notes.read_text().splitlines() if notes.exists() else []
    return {line["moment"]: line for line in map(json.loads, lines)}


def figures(scenario, ranks, begin, samples, folder, status, hang_after, words) -> Figures:
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    moments = moments_of(folder)
    started = next(event["time"] for event in events if event["event"] == "start")
    named = next(event for event in events if event["event"] == EVENT[scenario])
    ended = next(event["time"] for event in events if event["event"] == "end")
    trouble = moments["trouble"]["time"]
    due = trouble + (hang_after if scenario == "hang" else 60.0 if scenario == "silent" else 0.0)
    work = [each for each in samples if started + SETTLED_SECONDS <= each[0] <= trouble]
    is_long = scenario == "calm" and len(work) > 1
    cpu = 60 * (work[-1][1] - work[0][1]) / (work[-1][0] - work[0][0]) if is_long else None
    done = moments.get("done", {})
    return Figures(
        scenario=scenario,
        ranks=ranks,
        starts=started - begin,
        named=named["time"] - due,
        shown=words - due,
        ends=ended - due,
        cpu=cpu,
        cpu_start=next(cpu for when, cpu, _ in samples if when >= started),
        peak=max(rss for _, _, rss in samples),
        status=status,
        text=named["text"],
        **{name: done[name] for name in ("sent", "heard", "bytes", "stops") if name in done},
    )


def show(found: list[Figures]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("scenario", "starts s", "shown s", "event s", "ends s", "cpu s/min", "peak MB", "status", "messages")
    for each in found:
        seconds = [f"{value:.1f}" for value in (each.starts, each.shown, each.named, each.ends)]
        cpu = "" if each.cpu is None else f"{each.cpu:.2f}"
        messages = f"{sum(each.sent.values())} / {sum(each.heard.values())}"
        table.add_row(each.scenario, *seconds, cpu, f"{each.peak / 1e6:.0f}", str(each.status), messages)
    console = Console(width=120)
    console.print(table, f"goals: {CPU_GOAL} s/min, {MEMORY_GOAL / 1e6:.0f} MB, named in {NAMED_GOAL} s")
    for each in found:
        console.print(
            f"{each.scenario}: {each.text[:200]}", f"sent {each.sent}, heard {each.heard}, bytes {each.bytes}"
        )
    console.print(f"{os.cpu_count()} cores, which launcher and simulator share")


if __name__ == "__main__":
    main()
