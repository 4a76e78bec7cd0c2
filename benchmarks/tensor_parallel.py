"""Measures what dividing a block by columns and rows over two ranks gains and costs.

    python -m benchmarks tensor-parallel

The block is Dense 1024-4096-1024 with Adam, on random data in memory. Beside it, in turns within one run: that block
in one process with one core and with all cores; two independent processes at the same time, each with a block of half
the width, which is the bound that no division can beat; and the divided block whose variables are gathered before use.
Times are medians of an epoch's steps; the memory is that of variables and of the optimizer's state.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.jobs import environment, figures_of, fit_of, mpirun, part, threads

WIDTH, HIDDEN = 1024, 4096
LAYOUT = {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)}
DIVIDED, GATHERED, BOUND = "divided over 2 ranks", "divided, gathered before use", "2 independent halves (bound)"
ONE_CORE, ALL_CORES = "one process, one core", "one process, all cores"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="epochs of each system (%(default)s)")
    parser.add_argument(
        "--steps", type=int, default=60, help="steps of an epoch (%(default)s); one should last a second"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 512], help="rows of a batch (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=("ranks", "alone"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return {"ranks": ranks, "alone": alone}[args.worker](args)
    figures = launch(args)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def launch(args):
    """Runs two ranks, which start the process with all cores themselves; returns the figures."""
    return figures_of([*mpirun(2), *worker_command("ranks", args)], HOROVOD_CYCLE_TIME="0.2")


def worker_command(kind, args):
    options = ["--rounds", args.rounds, "--steps", args.steps, "--rows", *args.rows]
    return part("tensor-parallel", "--worker", kind, *options)


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "rows a batch", "system", "ms a step", "quartiles", "against the bound", "parameters and slots a rank"
    )
    for row in figures:
        low, high = row["quartiles"]
        held = "" if row["held"] is None else f"{row['held']:.3f}"
        ratio = f"{row['against_bound']:.2f}"
        table.add_row(str(row["rows"]), row["system"], f"{row['ms']:.2f}", f"{low:.2f}-{high:.2f}", ratio, held)
    Console(width=120).print(table)


def ranks(args):
    threads(1)
    import keras_par as kp

    kp.init()
    others = Others(args) if kp.rank() == 0 else None
    figures = []
    for place, rows in enumerate(args.rows):
        whole, held = epoch_of(divided(), rows, args.steps)
        gathered, _ = epoch_of(divided(), rows, args.steps, without_rules=True)
        half, full = (epoch_apart(hidden, rows, args.steps) for hidden in (HIDDEN // 2, HIDDEN))
        systems = {
            DIVIDED: whole,
            GATHERED: gathered,
            BOUND: half,
            ONE_CORE: full if kp.rank() == 0 else None,
            ALL_CORES: None if others is None else lambda place=place: others.epoch(place),
        }
        times = alternate(systems, args.rounds)
        if kp.rank() == 0:
            bound = statistics.median(times[BOUND])
            held_by = {DIVIDED: held, GATHERED: held}
            figures += [figure(rows, name, times[name], bound, args.steps, held_by.get(name)) for name in systems]
    if others is not None:
        others.close()
        print(json.dumps(figures), flush=True)


def alone(args):
    """Trains in one process with all cores; each line read is the number of a batch size, each written seconds."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    threads(os.cpu_count() or 1)
    epochs = [epoch_of(block(HIDDEN), rows, args.steps)[0] for rows in args.rows]
    for line in sys.stdin:
        print(epochs[int(line)](), flush=True)


class Others:
    """The process with all cores, which works only when it is asked."""

    def __init__(self, args):
        more = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(worker_command("alone", args), env=environment(**more), text=True, **pipes)

    def epoch(self, place):
        self._process.stdin.write(f"{place}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def divided():
    import keras

    import keras_par as kp

    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ("batch", "model")))
    for pattern, axes in LAYOUT.items():
        layout_map[pattern] = axes
    with kp.ModelParallel(layout_map=layout_map).scope():
        return block(HIDDEN)


def block(hidden):
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    x = inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH, name="before")(x)  # so that the block has a backward pass
    x = layers.Dense(hidden, "relu", name="up")(x)
    model = keras.Model(inputs, layers.Dense(WIDTH, name="down")(x))
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


def epoch_of(model, rows, steps, without_rules=False):
    """A function that trains an epoch and returns its seconds; and the share of the bytes that this rank holds."""
    import numpy as np
    import tensorflow as tf

    from keras_par.sharding.rules.table import RULES

    x = np.random.default_rng(0).normal(size=(rows * steps, WIDTH)).astype("float32")
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((x, x[:, ::-1])).batch(rows, drop_remainder=True).with_options(options)
    data = data.cache().prefetch(2)
    epoch = fit_of(model, x=data)
    rules = dict(RULES)
    if without_rules:
        RULES.clear()
    epoch()
    RULES.update(rules)
    block_variables = [variable for variable in model.variables if not variable.path.startswith("before")]
    slots = [variable for variable in model.optimizer.variables if "before" not in variable.path]
    variables = [*block_variables, *slots]
    held = sum(int(np.prod(getattr(v, "local_shape", v.shape))) for v in variables)
    return epoch, held / sum(int(np.prod(v.shape)) for v in variables)


def epoch_apart(hidden, rows, steps):
    """The same for a block that a rank trains by itself, without the share."""
    import keras_par as kp

    with kp.independent():
        epoch, _ = epoch_of(block(hidden), rows, steps)

    def apart():
        with kp.independent():
            return epoch()

    return apart


def alternate(systems, rounds):
    """Seconds of each system's epochs on this rank, taken in turns after one each to warm up; None is no part in it."""
    import keras_par as kp

    times = {name: [] for name in systems}
    for number in range(-1, rounds):
        for name, system in systems.items():
            kp.barrier()
            seconds = system() if system is not None else 0.0
            if number >= 0:
                times[name].append(seconds)
    return times


def figure(rows, system, seconds, bound, steps, held):
    low, median, high = (1000 * value / steps for value in statistics.quantiles(seconds, n=4))
    against = statistics.median(seconds) / bound
    return {
        "rows": rows,
        "system": system,
        "ms": median,
        "quartiles": [low, high],
        "against_bound": against,
        "held": held,
    }


if __name__ == "__main__":
    main()
