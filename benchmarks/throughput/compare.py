"""Lets all systems train each workload in turns, and sets their throughput beside each other."""

import argparse
import json
import os
import platform
import statistics
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.throughput.phases import PHASES
from benchmarks.throughput.results import BOUND, Result, ratio
from benchmarks.throughput.systems import SYSTEMS
from benchmarks.throughput.turns import SystemFailedError, Team
from benchmarks.throughput.workloads import WORKLOADS

WARM_UP = 2  # epochs before those that count
# What keras-par is to reach, as a ratio of its rows/s by another system's: (workload, system, against, at least).
GOALS = [
    ("mlp", "keras-par", "bound", 0.70),
    ("mlp", "keras-par", "ddp", 3.2),
    ("mlp", "keras-par", "jax", 1.2),
    ("mlp", "keras-par", "plain", 1.0),
    ("mlp", "keras-par-gloo", "ddp", 1.3),
    ("cnn", "keras-par-gloo", "ddp", 1.1),
    ("gpt", "keras-par", "bound", 0.93),
    ("gpt", "megatron", "jax-megatron", 1.0),
    ("recommender", "keras-par", "loop-dense", 3.0),
    ("resnet", "keras-par-bf16", "bound", 0.94),
    *((name, "zero-1", "keras-par", 1.0) for name in ("wide", "gpt")),
    *((name, "zero-2", "keras-par", 0.97) for name in ("wide", "gpt")),
    *((name, "zero-3", "keras-par", 0.85) for name in ("wide", "gpt")),
    *((name, "zero-3", "fsdp", 1.5) for name in ("wide", "gpt")),
    *((name, "keras-par", "bound", 0.98) for name in ("cnn", "resnet")),
    *((name, "keras-par", "ddp", 1.5) for name in ("cnn", "resnet")),
    *((name, "keras-par", "plain", 1.05) for name in ("cnn", "resnet")),
    *((name, "keras-par", "loop", 1.0) for name in WORKLOADS),
]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks throughput", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=9, help="epochs of each system that count (%(default)s)")
    parser.add_argument("--json", type=Path, help="writes all figures to this file")
    parser.add_argument("--plot", type=Path, help="draws them on a page, into this file")
    args = parser.parse_args(arguments)
    if args.rounds < 2:
        parser.error("--rounds must be at least 2, for quartiles")
    results = []
    for name in args.workloads:
        fitting = [system for system in args.systems if name in (SYSTEMS[system].only or WORKLOADS)]
        results += compare(name, fitting, args.ranks, args.rounds)
        show(name, [result for result in results if result.workload == name])
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine(), "results": [asdict(each) for each in results]}, indent=1)
        )
    if args.plot:
        from benchmarks.throughput.plot import draw

        draw(results, args.plot)


def compare(workload: str, systems: list[str], num_ranks: int, rounds: int) -> list[Result]:
    """The results of some systems that train a workload in turns."""
    of = WORKLOADS[workload]
    rows = of.num_steps * of.rows_per_rank * num_ranks
    results = {system: Result(workload, system, rows, of.num_steps) for system in systems}
    teams: dict[str, Team] = {}
    try:
        for number in range(-WARM_UP, rounds):
            for system, result in results.items():
                try:
                    if number == -WARM_UP:
                        teams[system] = SYSTEMS[system].start(workload, num_ranks)
                    if not result.failure:
                        seconds = teams[system].train()
                        result.seconds += [seconds] if number >= 0 else []
                except SystemFailedError as error:
                    result.failure, result.seconds = str(error), []
                    teams.pop(system, None)
        for system, team in list(teams.items()):
            told = team.end()
            del teams[system]
            results[system].peak_memory = [each.pop("peak_memory") for each in told]
            results[system].told = told[0]
    finally:
        for team in teams.values():
            team.kill()
    return list(results.values())


def show(workload: str, results: list[Result]) -> None:
    """Prints a table of a workload's results, and what of the goals is reached."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=130)
    bound = next((result for result in results if result.system == BOUND and result.seconds), None)
    table = Table(
        "system", "rows/s", "quartiles", "ms a step", "of the bound", "MB a process", "MB reduced", title=workload
    )
    for result in results:
        title = SYSTEMS[result.system].title
        if not result.seconds:
            table.add_row(title, "-", "", "", "", "", result.failure[:40])
            continue
        low, _, high = statistics.quantiles(result.seconds, n=4)
        sent = result.told.get("bytes")
        table.add_row(
            title,
            f"{result.rows_per_second:.0f}",
            f"{result.rows / high:.0f}-{result.rows / low:.0f}",
            f"{result.step_ms:.2f}",
            f"{ratio(result, bound):.2f}" if bound else "",
            f"{max(result.peak_memory) / 1e6:.0f}",
            "" if sent is None else f"{sent / 1e6:.2f} in {result.told['collectives']}",
        )
    console.print(table)
    console.print(phases_table(workload, results))
    found = {result.system: result for result in results if result.seconds}
    for name, system, against, goal in GOALS:
        if name == workload and system in found and against in found:
            value = ratio(found[system], found[against])
            reached = "reached" if value >= goal else "missed"
            console.print(f"  {system} / {against}: {value:.2f}, goal {goal:.2f}: {reached}")


def phases_table(workload: str, results: list[Result]):
    """What a step's time goes to, in one more epoch, on the first rank."""
    from rich.table import Table

    table = Table("ms of a step, profiled", *PHASES, title=workload)
    for result in results:
        if "phases" in result.told:
            spent = result.told["phases"]
            table.add_row(SYSTEMS[result.system].title, *(f"{spent[p]:.2f}" if p in spent else "" for p in PHASES))
    return table


def machine() -> dict:
    """What the figures are of."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    packages = {name: version(name) for name in ("keras-par", "keras", "tensorflow", "horovod", "numpy")}
    return {"processor": model, "cores": os.cpu_count(), "system": platform.platform(), "versions": packages}
