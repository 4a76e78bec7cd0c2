"""Measures what it costs to be exact and not silent: shared random numbers, and the looks at weights, losses, metrics.

    python -m benchmarks exactness
    python -m benchmarks exactness --only looked --steps 1  # of the first step

Two ranks train the MLP of `overhead` in turns with and without each of these; what is left out is left out by putting
nothing in its place, as no option does it. Figures are differences of medians over rounds that alternate within one
run, for the time of a whole call of `fit` divided by its steps; the looks happen once an epoch or once a compiled
model, so that their share of a step is a share of this number of steps.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from benchmarks.jobs import alternate, figures_of, mpirun, part, threads
from benchmarks.overhead import ROWS_PER_RANK, random_rows

GOAL, GOAL_OF_FIRST = 0.5, 5  # percent of a step, and of the first one
PATCHES = "keras_par.keras_patches"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="epochs of each system (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="steps of an epoch (%(default)s)")
    parser.add_argument("--only", default="", help="measure only what has this word in its name")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    options = ("--rounds", args.rounds, "--steps", args.steps, "--only", args.only)
    worker_command = part("exactness", "--worker", *options)
    figures = figures_of([*mpirun(2), *worker_command])
    show(figures, args.steps)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


def show(figures: list[dict], steps: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "ms a step", "without", "costs", "quartiles", "again", "goal")
    for row in figures:
        low, high = row["quartiles"]
        table.add_row(
            row["what"],
            f"{row['ms'][0]:.3f}",
            f"{row['ms'][1]:.3f}",
            f"{row['percent']:+.2f} %",
            f"{low:+.2f} - {high:+.2f}",
            f"{row['again']:+.2f} %",
            f"{GOAL if steps > 1 else GOAL_OF_FIRST} %",
        )
    console = Console(width=110)
    console.print(table)
    console.print(f"epochs of {steps} steps; 'again' is a second one without it against the first")


def worker(args: argparse.Namespace) -> None:
    threads(1)
    import keras_par as kp

    kp.init()
    parts: dict[str, tuple[Callable, bool]] = {
        "random numbers, even batches": (drawing(True), False),
        "random numbers, unknown sizes": (drawing(False), False),
        "weights compared, twice an epoch": (
            looking(f"{PATCHES}.coordination.fit_call.require_same_weights", nothing),
            False,
        ),
        "a metric of one's own noted": (noting, False),
        "losses looked at, once": (looking(f"{PATCHES}.trainer.scalar_probe.probe_first_batch", unlooked), True),
        "an own step's losses looked at, once": (
            looking(f"{PATCHES}.trainer.scalar_probe.probe_first_batch", unlooked, own="step"),
            True,
        ),
        "an own layer's outputs looked at, once": (
            looking(f"{PATCHES}.trainer.scalar_probe.probe_first_batch", unlooked, own="layer"),
            True,
        ),
    }
    measured = [
        compared(what, make, args.steps, args.rounds, fresh)
        for what, (make, fresh) in parts.items()
        if args.only in what
    ]
    if kp.rank() == 0:
        print(json.dumps(measured), flush=True)


def drawing(even: bool) -> Callable:
    """Makes fits of a model with dropout, with this rank's rows of one process's numbers, or numbers of its own."""

    def make(steps: int, is_with: bool) -> Callable[[], float]:
        patch = (
            contextlib.nullcontext
            if is_with
            else lambda: mock.patch(f"{PATCHES}.trainer.step_program.batch_rows", nothing)
        )
        return timed(lambda: network(dropout=0.2), batches(steps, even), patch)

    return make


def noting(steps: int, is_with: bool) -> Callable[[], float]:
    """Makes fits with a metric of the user's own, whose arguments each step keeps on rank 0, or does not."""
    note = f"{PATCHES}.coordination.metric_probe.MetricProbe.note"
    patch = contextlib.nullcontext if is_with else lambda: mock.patch(note, nothing)
    return timed(lambda: network(metrics=[spread]), batches(steps, True), patch)


def spread(y_true, y_pred):
    """How far a row's outputs are apart."""
    import keras

    return keras.ops.max(y_pred, -1) - keras.ops.min(y_pred, -1)


def looking(target: str, instead: Callable, own: str = "") -> Callable:
    """Makes fits with one of the looks, or with something instead that does not look."""

    def make(steps: int, is_with: bool) -> Callable[[], float]:
        patch = contextlib.nullcontext if is_with else lambda: mock.patch(target, instead)
        return timed(lambda: network(own=own), batches(steps, True), patch)

    return make


def nothing(*args, **kwargs) -> None:
    """Stands in for what is left out."""


def unlooked(program, iterator):
    """Stands in for the look at the first batch."""
    return iterator


def timed(build: Callable, data, patch: Callable) -> Callable[[], float]:
    """A function that trains an epoch of the model that `build` makes and returns the seconds of the call of `fit`."""
    models: list = []

    def epoch(fresh: bool = False) -> float:
        if fresh:
            models.clear()
        model = models[0] if models else build()
        models[:] = [model]
        with patch():
            begin = time.perf_counter()
            model.fit(data, verbose=0)
            return time.perf_counter() - begin

    return epoch


def compared(what: str, make: Callable, steps: int, rounds: int, fresh: bool = False) -> dict:
    """The cost of what is measured, in milliseconds and percent of a step."""
    systems = [make(steps, is_with) for is_with in (True, False, False)]
    if fresh:  # the look is at a new model's first step
        systems = [lambda system=system: system(fresh=True) for system in systems]  # type: ignore[misc]
    times = alternate(systems, rounds)
    with_it, without, again = (statistics.median(seconds) for seconds in times)
    percents = [100 * (a / b - 1) for a, b in zip(times[0], times[1], strict=True)]
    low, _, high = statistics.quantiles(percents, n=4)
    return {
        "what": what,
        "ms": [1e3 * with_it / steps, 1e3 * without / steps],
        "percent": 100 * (with_it / without - 1),
        "quartiles": [low, high],
        "again": 100 * (again / without - 1),
    }


def batches(steps: int, even: bool):
    """The batches of an epoch; not `even` leaves their sizes unknown while tracing."""
    import keras_par as kp

    size = ROWS_PER_RANK * kp.size()
    return random_rows(steps * size).batch(size, drop_remainder=even).prefetch(2)


def network(dropout: float = 0.0, own: str = "", metrics: tuple | list = ()):
    """The MLP, compiled under the strategy; `own` gives it a "step" or a "layer" of its own."""
    import keras
    import tensorflow as tf
    from keras import layers

    import keras_par as kp

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.loss(y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    class Doubled(layers.Layer):
        def call(self, x):
            return 2 * x

    keras.utils.set_random_seed(1)
    hidden = [layers.Flatten()]
    for _ in range(2):
        hidden += [layers.Dense(512, "relu"), layers.Dropout(dropout)]
    hidden += [Doubled()] * (own == "layer")
    with kp.DataParallel().scope():
        model = (Own if own == "step" else keras.Sequential)([layers.Input((28, 28, 1)), *hidden, layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=list(metrics))
    return model


if __name__ == "__main__":
    main()
