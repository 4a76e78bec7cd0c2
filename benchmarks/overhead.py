"""Measures what a strategy costs: fit on one rank against plain Keras, and on two against a hand-written loop.

    python -m benchmarks overhead

All figures are ratios of medians over rounds that alternate within one run, on random data in memory, with
tf.data's autotuning off. An epoch's time is that between its callbacks; what a call of fit costs to start, some
20 ms on two ranks, is not in it. The hand-written loop is Horovod's documented way: a tf.function around the gradient
tape, one grouped all-reduce, the optimizer's apply, and a Python loop over batches. A second plain Keras against the
first shows how much of a ratio is noise. On two ranks all is measured at Horovod's cycle time of 1 ms, its default,
which rounds the duration of a step up to the next cycle for some and not for others, and at 0.2 ms.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

from benchmarks.jobs import alternate, figures_of, fit_of, mpirun, part, threads

ROWS_PER_RANK = 32
CYCLE_TIMES = ("1", "0.2")
PLAIN, LOOP = "plain Keras fit", "hand-written loop"
GOALS = {PLAIN: 0.99, LOOP: 0.98}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="epochs of each system (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="steps of an MLP epoch; a CNN's has a quarter")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=("one", "two"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    figures = launch("one", args, [])
    for cycle_time in CYCLE_TIMES:
        figures += launch("two", args, mpirun(2), HOROVOD_CYCLE_TIME=cycle_time)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def launch(kind, args, launcher, **variables):
    """Runs the measurement `kind` in processes of its own and returns its figures."""
    worker = part("overhead", "--worker", kind, "--rounds", args.rounds, "--steps", args.steps)
    return figures_of([*launcher, *worker], **variables)


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "system", "rows/s", "against", "rows/s", "ratio", "quartiles", "goal")
    for row in figures:
        low, high = row["quartiles"]
        table.add_row(
            row["model"],
            row["system"],
            f"{row['rows_per_second'][0]:.0f}",
            row["against"],
            f"{row['rows_per_second'][1]:.0f}",
            f"{row['ratio']:.3f}",
            f"{low:.3f}-{high:.3f}",
            "" if row["system"] == PLAIN else f"{GOALS[row['against']]:.2f}",
        )
    Console(width=110).print(table)


def worker(args):
    threads(1)
    import keras_par as kp

    kp.init()
    measure = {"one": one_rank, "two": two_ranks}[args.worker]
    figures = []
    for model, steps in (("MLP", args.steps), ("CNN", max(1, args.steps // 4))):
        figures += measure(model, steps, args.rounds)
    if kp.rank() == 0:
        print(json.dumps(figures), flush=True)


def one_rank(name, steps, rounds):
    data = random_rows(steps * ROWS_PER_RANK).batch(ROWS_PER_RANK, drop_remainder=True).prefetch(2)
    plain, again = fit_of(compiled(name), x=data), fit_of(compiled(name), x=data)
    ours = fit_of(compiled(name, strategy=True), x=data)
    times = alternate([plain, ours, again], rounds)
    rows = steps * ROWS_PER_RANK
    return [
        figure(name, "fit, 1 rank", PLAIN, rows, times[1], times[0]),
        figure(name, PLAIN, PLAIN, rows, times[2], times[0]),
    ]


def two_ranks(name, steps, rounds):
    import keras_par as kp

    batch_size = ROWS_PER_RANK * kp.size()
    rows = steps * batch_size
    data = random_rows(rows)
    whole = data.batch(batch_size, drop_remainder=True).prefetch(2)
    share = data.shard(kp.size(), kp.rank()).batch(ROWS_PER_RANK, drop_remainder=True).prefetch(2)
    arrays = dict(zip("xy", random_arrays(rows), strict=True), batch_size=batch_size)
    loop = hand_written(name, share)
    from_dataset = fit_of(compiled(name, strategy=True), x=whole)
    from_arrays = fit_of(compiled(name, strategy=True), **arrays)
    times = alternate([loop, from_dataset, from_arrays], rounds)
    cycle = os.environ["HOROVOD_CYCLE_TIME"]
    return [
        figure(name, f"fit, 2 ranks, tf.data, cycle {cycle} ms", LOOP, rows, times[1], times[0]),
        figure(name, f"fit, 2 ranks, arrays, cycle {cycle} ms", LOOP, rows, times[2], times[0]),
    ]


def random_arrays(num_rows):
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_rows, 28, 28, 1)).astype("float32")
    return x, generator.integers(0, 10, num_rows)


def random_rows(num_rows):
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices(random_arrays(num_rows)).with_options(options)


def compiled(name, strategy=False):
    import contextlib

    import keras

    import keras_par as kp

    with kp.DataParallel().scope() if strategy else contextlib.nullcontext():
        model = network(name)
        model.compile(keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def network(name):
    import keras
    from keras import layers

    keras.utils.set_random_seed(1)
    if name == "MLP":
        hidden = [layers.Flatten(), layers.Dense(512, "relu"), layers.Dense(512, "relu")]
    else:
        hidden = [layers.Conv2D(32, 3, activation="relu"), layers.Conv2D(64, 3, 2, activation="relu"), layers.Flatten()]
    return keras.Sequential([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])


def hand_written(name, data):
    """An epoch of the loop that Horovod's documentation shows, with its gradients in one group."""
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    model = network(name)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    hvd.broadcast_variables([v.value for v in model.trainable_variables], root_rank=0)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(hvd.grouped_allreduce(gradients), model.trainable_variables)
        return loss

    def epoch():
        begin = time.perf_counter()
        for x, y in data:
            loss = step(x, y)
        float(loss)  # waits for the last step
        return time.perf_counter() - begin

    return epoch


def figure(model, system, against, rows, ours, theirs):
    """Throughput of ours divided by theirs; quartiles are of the ratios round by round."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    a, b = statistics.median(ours), statistics.median(theirs)
    return {
        "model": model,
        "system": system,
        "against": against,
        "rows_per_second": [rows / a, rows / b],
        "ratio": b / a,
        "quartiles": [low, high],
    }


if __name__ == "__main__":
    main()
