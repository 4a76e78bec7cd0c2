"""Measures what lies between two epochs: from the end of one's last step to the begin of the next one's first.

    python -m benchmarks epochs

Two ranks train a model by `fit`, and in turns with that each trains another one by itself, as plain Keras does.
"""

import argparse
import json
import statistics
import time

from benchmarks.jobs import figures_of, mpirun, part, threads
from keras_par.launch.engines import BOUND_CYCLE_TIME

MODELS = ("ResNet-50", "MLP")
ROWS, PIXELS = 4, 32


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="calls of fit of each system (%(default)s)")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of a call (%(default)s)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    options = ("--rounds", args.rounds, "--epochs", args.epochs)
    show(figures_of([*mpirun(2), *part("epochs", "--worker", *options)], HOROVOD_CYCLE_TIME=BOUND_CYCLE_TIME))


def show(figures: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "keras-par, ms", "plain Keras, ms", "more, ms")
    for row in figures:
        table.add_row(row["model"], *(f"{row[key]:.1f}" for key in ("ranks", "plain")), f"{row['more']:+.1f}")
    Console(width=100).print(table)


def worker(args: argparse.Namespace) -> None:
    threads(1)
    import keras_par as kp

    kp.init()
    measured = [compared(model, args) for model in MODELS]
    if kp.rank() == 0:
        print(json.dumps(measured), flush=True)


def compared(name: str, args: argparse.Namespace) -> dict:
    """Medians of milliseconds, of the ranks together and of this rank by itself."""
    import keras_par as kp

    with kp.DataParallel().scope():
        together = trained(name, args.epochs)
        found: dict[str, list[float]] = {"ranks": [], "plain": []}
        with kp.independent():
            alone = trained(name, args.epochs)
        for _ in range(args.rounds):
            found["ranks"] += together()
            kp.barrier()
            with kp.independent():
                found["plain"] += alone()
            kp.barrier()
    ranks, plain = (1e3 * statistics.median(found[key]) for key in ("ranks", "plain"))
    return {"model": name, "ranks": ranks, "plain": plain, "more": ranks - plain}


def trained(name: str, epochs: int):
    """A function that calls `fit` of a model that has been trained before, and returns seconds between epochs."""
    import keras
    import numpy as np

    layers = keras.layers
    if name == "MLP":
        body = [layers.Flatten(), *(layers.Dense(512, "relu") for _ in range(3))]
    else:
        body = [keras.applications.ResNet50(weights=None, include_top=False, pooling="avg")]
    model = keras.Sequential([layers.Input((PIXELS, PIXELS, 3)), *body, layers.Dense(10)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.zeros((2 * ROWS, PIXELS, PIXELS, 3), "float32"), np.zeros(2 * ROWS, "int32")

    class Clock(keras.callbacks.Callback):
        reads_own_logs = True

        def on_train_begin(self, logs=None):
            self.seconds, self.ended = [], None

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 0 and self.ended is not None:
                self.seconds.append(time.perf_counter() - self.ended)

        def on_train_batch_end(self, batch, logs=None):
            self.ended = time.perf_counter()

    def fit():
        model.fit(x, y, batch_size=ROWS, epochs=epochs, verbose=0, callbacks=[clock := Clock()])
        return clock.seconds

    fit()
    return fit
