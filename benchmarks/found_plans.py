"""Measures what the plans that `kp.search` finds gain over plain data parallel, in time and in memory.

    python -m benchmarks found-plans

Two ranks measure the machine, then search a plan for each model. Models whose plan is to be faster are trained by it
and by plain data parallel, in turns within one run; times are of an epoch's steps. One model is searched for MEMORY a
rank, and trained by both in jobs of their own where the system lets each rank take no more than that besides what it
has after a small model's training: RLIMIT_DATA, which counts all private memory that can be written, and needs no root.
"""

import argparse
import json
import re
import resource
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.jobs import alternate, environment, figures_of, mpirun, part, threads
from benchmarks.search import builder_of, epoch_of, mlp
from benchmarks.small_gpt import small_gpt

WIDTH = 2048
DEEP = f"MLP of 16 layers of {WIDTH:,}, 64 rows"
MEMORY = 640 << 20
PLAIN, FOUND = "data parallel", "what is found"
# Tensors are allocated one by one and given back, where TensorFlow would take regions of twice the size each time.
ONE_BY_ONE = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1", "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1048576"}
SECONDS = 180  # after which a job whose ranks wait for one that is refused counts as refused


def language_model():
    return *small_gpt(length=32, words=16384, width=128, heads=4, blocks=1), 8


def deep():
    from keras import Input, Sequential
    from keras.layers import Dense

    return Sequential([Input((WIDTH,)), *(Dense(WIDTH, "relu") for _ in range(16))]), "mse", 64


FAST = {"MLP 512-2048-2048-512, 64 rows": mlp, "language model of 16,384 words, 8 texts of 32": language_model}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="epochs of each (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of an epoch (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--plan", choices=(PLAIN, FOUND), help=argparse.SUPPRESS)
    parser.add_argument("--machine", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return WORKERS[args.worker](args)
    with tempfile.TemporaryDirectory() as folder:
        args.machine = Path(folder) / "machine.toml"
        figures = figures_of([*mpirun(2), *worker("time", args)])
        figures += [held("free", PLAIN, args), held("limited", PLAIN, args), held("limited", FOUND, args)]
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def worker(kind, args, *options):
    sizes = ["--rounds", args.rounds, "--steps", args.steps, "--machine", args.machine]
    return part("found-plans", "--worker", kind, *sizes, *options)


def held(kind, plan, args):
    """The figures of a job that trains the deep model by a plan, or why it did not."""
    command = [*mpirun(2), *worker(kind, args, "--plan", plan)]
    found = {"model": DEEP, "limit": kind == "limited", "plan": plan}
    try:
        variables = environment(**ONE_BY_ONE)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return found | {"said": f"refused: some rank waits for {SECONDS} s"}
    if done.returncode:
        said = re.search(r"OOM when allocating[^\n]*|exited on signal \d+ \([^)]*\)|bad_alloc", done.stderr)
        return found | {"said": f"refused: {said[0] if said else done.stderr[-300:]}"}
    return found | json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))


def time_all(args):
    """Trains each model by both plans, in turns."""
    threads(1)
    import keras_par as kp
    from keras_par.searching.measure import measure

    kp.init(seed="own")
    machine = measure()
    figures = []
    for name, make in FAST.items():
        build, batch_size = builder_of(make)
        found = kp.search(build, batch_size, machine=machine).plan
        layouts = {entry.pattern: entry.axes for entry in found.entries}
        plans = {PLAIN: ((2, 1), {}), FOUND: (tuple(found.mesh.values()) or (2, 1), layouts)}
        epochs = [epoch_of(build, *lies, batch_size, args.steps) for lies in plans.values()]
        for plan, seconds in zip(plans, alternate(epochs, args.rounds), strict=True):
            mesh, layout = plans[plan]
            ms = [1e3 * each / args.steps for each in seconds]
            figures.append({"model": name, "plan": plan, "mesh": mesh, "layout": layout, "ms": ms})
    if kp.rank() == 0:
        args.machine.write_text(machine.text())
        print(json.dumps(figures), flush=True)


def train(args):
    """Trains the deep model, if it is limited where the system lets this rank take MEMORY besides what it has."""
    threads(1)
    import keras
    import numpy as np

    import keras_par as kp

    kp.init(seed="own")
    build, batch_size = builder_of(deep)
    strategy = kp.DataParallel()
    if args.plan == FOUND:
        strategy = kp.search(build, batch_size, memory=MEMORY, machine=args.machine)
    x = np.random.default_rng(0).normal(size=(batch_size * args.steps, WIDTH)).astype("float32")
    with kp.DataParallel().scope():
        small = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        small.compile("adam", "mse")
    small.fit(x, x[:, :1], batch_size=batch_size, verbose=0)
    before = status("VmRSS")
    if args.worker == "limited":
        limit = status("VmData") + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with strategy.scope():
        model = build()
    model.fit(x, x, batch_size=batch_size, epochs=2, verbose=0)
    if kp.rank() == 0:
        mesh = tuple(strategy.plan.mesh.values()) if args.plan == FOUND else (2, 1)
        print(json.dumps({"mesh": mesh, "taken": status("VmHWM") - before, "said": "trains"}), flush=True)


def status(name):
    """Bytes that the system says of this process."""
    return 1024 * int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "plan", "mesh", "ms a step", "quartiles", "against data parallel", "besides a small model")
    plain = {row["model"]: statistics.median(row["ms"]) for row in figures if row["plan"] == PLAIN and "ms" in row}
    for row in figures:
        mesh = "x".join(map(str, row.get("mesh", ())))
        if "ms" in row:
            low, median, high = statistics.quantiles(row["ms"], n=4)
            against = f"{median / plain[row['model']]:.2f}"
            table.add_row(row["model"], row["plan"], mesh, f"{median:.1f}", f"{low:.1f}-{high:.1f}", against, "")
        else:
            limit = f", in {MEMORY >> 20} MB" if row["limit"] else ""
            taken = f"{row['said']}, {row['taken'] >> 20} MB" if "taken" in row else row["said"]
            table.add_row(row["model"], row["plan"] + limit, mesh, "", "", "", taken)
    Console(width=150).print(table)


WORKERS = {"time": time_all, "free": train, "limited": train}

if __name__ == "__main__":
    main()
