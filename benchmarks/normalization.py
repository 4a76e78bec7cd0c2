"""Measures what it costs that batch normalization sees the rows of all ranks, as one process does.

    python -m benchmarks normalization

Two ranks train convolutional networks with `sync_batch_norm=True`, the default, and with False, in turns within one
run: through the host's shared memory, and through Horovod, with the cycle time that `keras-par run` sets. Figures are
medians of epochs.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.jobs import alternate, figures_of, fit_of, mpirun, part, threads
from keras_par.launch.engines import BOUND_CYCLE_TIME

MODELS = {"ResNet-50": "ResNet50", "MobileNetV2": "MobileNetV2"}
WAYS = ("shared_memory", "horovod")
ROWS_PER_RANK = 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="epochs of each system (%(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="steps of an epoch (%(default)s)")
    parser.add_argument("--pixels", type=int, default=32, help="height and width of images (%(default)s)")
    parser.add_argument("--only", default="", help="measure only what has this in its model and way")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    options = ("--rounds", args.rounds, "--steps", args.steps, "--pixels", args.pixels, "--only", args.only)
    figures = figures_of(
        [*mpirun(2), *part("normalization", "--worker", *options)], HOROVOD_CYCLE_TIME=BOUND_CYCLE_TIME
    )
    show(figures, args)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def show(figures: list[dict], args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "layers", "way", "ms a step", "without", "costs", "quartiles", "again")
    for row in figures:
        low, high = row["quartiles"]
        table.add_row(
            row["model"],
            str(row["layers"]),
            row["way"],
            f"{row['ms'][0]:.1f}",
            f"{row['ms'][1]:.1f}",
            f"{row['percent']:+.1f} %",
            f"{low:+.1f} - {high:+.1f}",
            f"{row['again']:+.1f} %",
        )
    console = Console(width=110)
    console.print(table)
    console.print(
        f"images of {args.pixels} x {args.pixels}, {ROWS_PER_RANK} a rank, epochs of {args.steps} steps; 'again' is a "
        "second one without it against the first"
    )


def worker(args: argparse.Namespace) -> None:
    threads(1)
    import keras_par as kp

    kp.init()
    chosen = [(model, way) for model in MODELS for way in WAYS if args.only in f"{model} {way}"]
    measured = [compared(model, way, args) for model, way in chosen]
    if kp.rank() == 0:
        print(json.dumps(measured), flush=True)


def compared(model: str, way: str, args: argparse.Namespace) -> dict:
    """What it costs one model by one way of sums, in milliseconds and percent of a step."""
    systems, layers = zip(*(system(model, way, is_with, args) for is_with in (True, False, False)), strict=True)
    times = alternate(systems, args.rounds)
    with_it, without, again = (statistics.median(seconds) for seconds in times)
    percents = [100 * (a / b - 1) for a, b in zip(times[0], times[1], strict=True)]
    low, _, high = statistics.quantiles(percents, n=4)
    return {
        "model": model,
        "layers": layers[0],
        "way": way,
        "ms": [1e3 * with_it / args.steps, 1e3 * without / args.steps],
        "percent": 100 * (with_it / without - 1),
        "quartiles": [low, high],
        "again": 100 * (again / without - 1),
    }


def system(name: str, way: str, is_with: bool, args: argparse.Namespace) -> tuple[Callable[[], float], int]:
    """A function that trains an epoch and returns its seconds, and the number of layers that normalize."""
    import keras
    import numpy as np

    import keras_par as kp

    keras.utils.set_random_seed(1)
    shape, size = (args.pixels, args.pixels, 3), ROWS_PER_RANK * kp.size()
    with kp.DataParallel(sync_batch_norm=is_with, reduce_by=way).scope():
        model = getattr(keras.applications, MODELS[name])(
            weights=None, input_shape=shape, classes=10, classifier_activation=None
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(args.steps * size, *shape)).astype("float32")
    y = numbers.integers(0, 10, len(x))
    layers = sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    return fit_of(model, x=x, y=y, batch_size=size), layers


if __name__ == "__main__":
    main()
