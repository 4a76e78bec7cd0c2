"""Measures what `keras-par run` costs: its start against mpirun's and horovodrun's own, and the heartbeat in a step.

    python -m benchmarks launcher

The start is the time of a whole command whose program is `python -c pass` on two ranks; the ways alternate. The
heartbeat's cost is measured twice. Directly: epochs of fit on the same two ranks alternate between a model that was
traced with the marks and runs with the sampler, and one without either; the second of two such models without shows the
noise. And by parts, which the noise of a shared machine cannot hide: the microseconds of Python of a step, those that
the marks add to a graph on one thread, those of a sample ten times a second, and the agents' processor time.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.jobs import SCRIPTS, alternate, environment, fit_of, part
from benchmarks.overhead import ROWS_PER_RANK, compiled, random_arrays

START_GOAL, HEARTBEAT_GOAL = 0.5, 0.005
NOTHING = [sys.executable, "-c", "pass"]
MPIRUN = [str(SCRIPTS / "mpirun"), "-np", "2", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root"]
RUN = [str(SCRIPTS / "keras-par"), "run", "-np", "2"]
STARTS = {
    "mpi": (MPIRUN + NOTHING, [*RUN, "--engine", "mpi", *NOTHING]),
    "gloo": ([str(SCRIPTS / "horovodrun"), "-np", "2", "--gloo", *NOTHING], [*RUN, "--engine", "gloo", *NOTHING]),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="of each way (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="steps of an epoch (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return measure_heartbeat(args)
    figures = {"start": {engine: start_up(*ways, args.rounds) for engine, ways in STARTS.items()}}
    figures["heartbeat"] = heartbeat(args)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def start_up(direct, ours, rounds):
    """Seconds of both commands, medians, and quartiles of the difference within a round."""
    times = [[seconds(command) for command in (direct, ours)] for _ in range(rounds)]
    differences = [ours - direct for direct, ours in times]
    low, middle, high = statistics.quantiles(differences, n=4)
    return {
        "direct": statistics.median(direct for direct, _ in times),
        "ours": statistics.median(ours for _, ours in times),
        "difference": middle,
        "quartiles": [low, high],
    }


def seconds(command):
    begin = time.perf_counter()
    subprocess.run(command, env=environment(), check=True, capture_output=True)
    return time.perf_counter() - begin


def heartbeat(args):
    """What the ranks find out about the heartbeat, and the agents' share of a core meanwhile."""
    command = [*RUN, *part("launcher", "--rank", "--rounds", args.rounds, "--steps", args.steps)[1:]]
    job = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    begin, used = time.monotonic(), {}
    while job.poll() is None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(job.pid).children(recursive=True):
                if child.cmdline()[2:4] == ["-m", "keras_par.agent"]:
                    used[child.pid] = sum(child.cpu_times()[:2])
        time.sleep(0.5)
    elapsed = time.monotonic() - begin
    found = json.loads(next(line for line in job.stdout if "{" in line).partition("] ")[2])
    assert len(used) == 2, "the agents' processor time was not found"
    return {**found, "agent": max(used.values()) / elapsed}


def measure_heartbeat(args):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    import keras_par as kp

    kp.init()
    assert kp.size() == 2
    rows = args.steps * ROWS_PER_RANK * kp.size()
    arrays = dict(zip("xy", random_arrays(rows), strict=True), batch_size=ROWS_PER_RANK * kp.size())
    watched = fit_of(compiled("MLP", strategy=True), **arrays)
    with unwatched():
        fits = [fit_of(compiled("MLP", strategy=True), **arrays) for _ in range(2)]
    times = alternate([watched, *map(without_watch, fits)], args.rounds)
    step = statistics.median(times[1]) / args.steps
    parts = {"python": python_part(), "marks": marks_part(), "sample": sample_part() * step / 0.1}
    if kp.rank() == 0:
        ratios = [[a / b for a, b in zip(each, times[1], strict=True)] for each in (times[0], times[2])]
        found = {
            "step": step,
            "parts": parts,
            "ratio": statistics.median(ratios[0]),
            "again": statistics.median(ratios[1]),
        }
        print(json.dumps(found), flush=True)


def without_watch(fit):
    def replacement(*arguments):
        with unwatched():
            return fit(*arguments)

    return replacement


@contextlib.contextmanager
def unwatched():
    """As if this process had been started by mpirun itself: no marks, no sampler, notes that nobody reads."""
    from keras_par.base.heartbeat_page import NEVER, Page
    from keras_par.job import rank_heartbeat
    from keras_par.job.step_clock import clock

    heartbeat = rank_heartbeat.current()
    clock.stop()
    rank_heartbeat._heartbeat = rank_heartbeat.Heartbeat(Page(stop_before=NEVER), None)
    try:
        yield
    finally:
        rank_heartbeat._heartbeat = heartbeat
        clock.watch()


def python_part():
    """Seconds of Python for one step."""
    from keras_par.base.heartbeat_page import NEVER, Page
    from keras_par.job import rank_heartbeat

    heartbeat = rank_heartbeat.Heartbeat(Page(stop_before=NEVER), None)
    with heartbeat.call("fit"):
        begin = time.perf_counter()
        for _ in range(20000):
            heartbeat.enter(rank_heartbeat.DATA)
            heartbeat.enter(rank_heartbeat.CALLBACK)
            heartbeat.begin_step(1)
            heartbeat.end_step({})
        return (time.perf_counter() - begin) / 20000


def marks_part():
    """Seconds that the four marks of a step with one collective add to a graph that updates variables, as steps do."""
    import tensorflow as tf

    from keras_par.job.step_clock import StepClock

    clock, x = StepClock(), tf.random.normal([32, 256])
    weights = [tf.Variable(tf.random.normal([256, 256])) for _ in range(4)]

    def graph(is_marked):
        def body(x):
            for number, weight in enumerate(weights):
                x = tf.tanh(x @ weight)
                if is_marked:
                    [x] = clock.marked([x], number)
            for weight in weights:
                weight.assign_sub(1e-9 * weight)
            return x

        return tf.function(body, autograph=False)

    functions = graph(False), graph(True), graph(False)
    times = [[repeated(function, x) for function in functions] for _ in range(60)]
    return statistics.median(marked - (before + after) / 2 for before, marked, after in times)


def repeated(function, x, count=100):
    function(x)
    begin = time.perf_counter()
    for _ in range(count):
        function(x)
    return (time.perf_counter() - begin) / count


def sample_part():
    """Seconds of one look at the marks."""
    import tensorflow as tf

    from keras_par.job.step_clock import StepClock

    clock = StepClock()
    tf.function(lambda x: clock.marked([x], 0))(tf.constant(0.0))
    assert clock.read()[0] == 1
    begin = time.perf_counter()
    for _ in range(2000):
        clock.read()
    return (time.perf_counter() - begin) / 2000


def show(figures):
    from rich.console import Console
    from rich.table import Table

    starts = Table("start of 2 ranks", "direct s", "keras-par run s", "difference s", "quartiles", "goal")
    for engine, row in figures["start"].items():
        low, high = row["quartiles"]
        numbers = [f"{row[name]:.2f}" for name in ("direct", "ours", "difference")]
        starts.add_row(engine, *numbers, f"{low:.2f}-{high:.2f}", f"{START_GOAL:.2f}")
    found = figures["heartbeat"]
    shares = {name: part / found["step"] for name, part in found["parts"].items()} | {"agent": found["agent"]}
    table = Table("heartbeat in an MLP's step", "share of the step", "goal")
    for name, share in shares.items():
        table.add_row(name, f"{share:.3%}", "")
    table.add_row("sum", f"{sum(shares.values()):.3%}", f"{HEARTBEAT_GOAL:.1%}")
    table.add_row("epochs with it against without", f"{found['ratio'] - 1:+.2%}", "")
    table.add_row("epochs without it against themselves", f"{found['again'] - 1:+.2%}", "")
    console = Console(width=100)
    console.print(starts, table, f"a step takes {1000 * found['step']:.2f} ms")


if __name__ == "__main__":
    main()
