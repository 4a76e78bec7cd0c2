"""Measures how well the search's cost model tells fast layouts from slow ones.

    python -m benchmarks search

Two ranks measure the machine, as `keras-par calibrate` does. Then each model is trained with many layouts: plain data
parallel, what the search finds on each mesh, and layouts that are drawn at random from the search space. All layouts of
a model take turns within one run. The table sets the predicted time of a step beside the measured one, with the rank
correlation (Spearman's) of both, and how much slower the layout that the search chooses is than the fastest measured.
It also sets half of the rounds beside the other half: what a measurement cannot repeat no prediction can meet.
"""

import argparse
import json
import random
import statistics
from pathlib import Path

from benchmarks.jobs import figures_of, fit_of, mpirun, part, threads
from benchmarks.small_gpt import small_gpt

MESHES = ((2, 1), (1, 2))
NAMES = ("batch", "model")


def mlp():
    from keras import Input, Sequential
    from keras.layers import Dense

    return Sequential([Input((512,)), Dense(2048, "relu"), Dense(2048, "relu"), Dense(512)]), "mse", 64


def gpt():
    return *small_gpt(length=64, words=2048, width=128, heads=4, blocks=2), 8


def cnn():
    import keras
    from keras import Input, Sequential
    from keras.layers import Conv2D, Dense, Flatten, MaxPooling2D

    parts = [Conv2D(32, 3, activation="relu"), Conv2D(64, 3, activation="relu"), MaxPooling2D(), Flatten()]
    model = Sequential([Input((28, 28, 1)), *parts, Dense(512, "relu"), Dense(10)])
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), 64


MODELS = {each.__name__: each for each in (mlp, gpt, cnn)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layouts", type=int, default=20, help="of each model, at least (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="epochs of each layout (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of an epoch (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args)
    options = ["--models", *args.models, "--layouts", args.layouts, "--rounds", args.rounds, "--steps", args.steps]
    figures = figures_of([*mpirun(2), *part("search", "--worker", *options)])
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def worker(args):
    threads(1)
    import keras_par as kp
    from keras_par.searching.measure import measure

    kp.init(seed="own")
    machine = measure()
    figures = [row for name in args.models for row in of_model(name, machine, args)]
    if kp.rank() == 0:
        print(json.dumps(figures), flush=True)


def of_model(name, machine, args):
    """The figures of a model: a row for each layout."""
    import keras

    import keras_par as kp
    from keras_par.comm import world
    from keras_par.plan.cost import predict
    from keras_par.plan.setting import Setting
    from keras_par.searching.look import look_at

    def build():
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model, loss, _ = MODELS[name]()
        model.compile(keras.optimizers.Adam(1e-4), loss)
        return model

    batch_size = MODELS[name]()[2]
    trace = look_at(build)
    plans = plans_of(trace, machine, batch_size, args.layouts, name)
    plans = world.current().all_gather_object(plans, "plans")[0]
    epochs = [epoch_of(build, mesh, layouts, batch_size, args.steps) for _, mesh, layouts in plans]
    times = [[] for _ in plans]
    for number in range(-1, args.rounds):
        for epoch, measured in zip(epochs, times, strict=True):
            kp.barrier()
            seconds = epoch()
            if number >= 0:
                measured.append(seconds / args.steps)
    rows = []
    for (kind, mesh, layouts), measured in zip(plans, times, strict=True):
        setting = Setting(machine, dict(zip(NAMES, mesh, strict=True)), NAMES[0], batch_size)
        prediction = predict(trace, {path: tuple(axes) for path, axes in layouts.items()}, setting)
        ms = statistics.median(measured) * 1e3
        rows.append({"model": name, "kind": kind, "mesh": mesh, "ms": ms, "predicted": prediction.seconds * 1e3})
        rows[-1] |= {"layouts": layouts, "machine": machine.text()}
        rows[-1]["halves_ms"] = [statistics.median(half) * 1e3 for half in (measured[::2], measured[1::2])]
    return rows


def plans_of(trace, machine, batch_size, count, name):
    """What is trained: (kind, mesh, layouts)."""
    from keras_par.plan.setting import Setting
    from keras_par.searching.find import find
    from keras_par.searching.maker import Maker

    draw = random.Random(name)
    found = [("data parallel", (2, 1), {})]
    searched = find(trace, machine, 2, batch_size)
    for kind, each in [("found", searched.best), *(("best of its mesh", other) for other in searched.others)]:
        found.append((kind, tuple(each.mesh.values()), each.layouts))
    settings = [Setting(machine, dict(zip(NAMES, mesh, strict=True)), NAMES[0], batch_size) for mesh in MESHES]
    makers = [Maker(trace, setting) for setting in settings]
    for maker in makers:
        maker.make()
    while len(found) < count:
        maker = makers[len(found) % 2]
        nodes = maker.variable_nodes
        choice = maker.complete({node: draw.randrange(len(maker.problem.states[node])) for node in nodes})
        layouts = {} if choice is None else maker.layouts(choice)
        if layouts:
            found.append(("drawn", tuple(maker.setting.mesh.values()), layouts))
    return found


def epoch_of(build, mesh, layouts, batch_size, steps):
    """A function that trains an epoch and returns its seconds."""
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_par as kp

    if layouts:
        layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(tuple(mesh), list(NAMES)))
        for path, axes in layouts.items():
            layout_map[path] = tuple(axes)
        strategy = kp.ModelParallel(layout_map=layout_map, batch_dim_name=NAMES[0])
    else:
        strategy = kp.DataParallel()
    with strategy.scope():
        model = build()
    rows = np.random.default_rng(0)
    shape = (batch_size * steps, *model.input_shape[1:])
    is_words = "int" in model.inputs[0].dtype
    x = rows.integers(0, 1000, shape) if is_words else rows.normal(size=shape).astype("float32")
    out = (shape[0], *model.output_shape[1:])
    y = rows.normal(size=out).astype("float32") if model.loss == "mse" else rows.integers(0, out[-1], out[:-1])
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size, drop_remainder=True).with_options(options)
    return fit_of(model, x=data.cache().prefetch(2))


def show(figures):
    from rich.console import Console
    from rich.table import Table

    console = Console(width=110)
    for name in dict.fromkeys(row["model"] for row in figures):
        rows = sorted((row for row in figures if row["model"] == name), key=lambda row: row["ms"])
        table = Table("layout", "mesh", "ms a step", "predicted", "predicted / measured", title=name)
        for row in rows:
            ratio = f"{row['predicted'] / row['ms']:.2f}"
            table.add_row(
                row["kind"], "x".join(map(str, row["mesh"])), f"{row['ms']:.2f}", f"{row['predicted']:.2f}", ratio
            )
        console.print(table)
        chosen = next(row for row in rows if row["kind"] == "found")
        correlation = spearman([row["ms"] for row in rows], [row["predicted"] for row in rows])
        repeated = spearman(*zip(*(row["halves_ms"] for row in rows), strict=True))
        console.print(
            f"{name}: rank correlation {correlation:.3f} of {len(rows)} layouts, of half of the rounds with the other "
            f"half {repeated:.3f}; what is found takes {chosen['ms'] / rows[0]['ms']:.2f} of the fastest measured"
        )


def spearman(x, y):
    """The correlation of the ranks."""
    import numpy as np

    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    main()
