"""Measures how well the search's cost model tells fast layouts from slow ones.

    python -m benchmarks search

`keras-par calibrate` measures the machine. Two ranks predict a step's time with many layouts: plain data parallel, what
the search finds on each mesh, and layouts that are drawn at random from the search space. Of the drawn those are kept
whose predicted times are spread evenly, since the order of equally fast layouts says nothing. Then several jobs train
them, one after another, because where the memory of a process happens to lie decides over a fifth of its speed for as
long as it lives. In a job all layouts of a model are made in an order of its own, and take turns.

The table sets the predicted time of a step beside the median of the jobs, with the rank correlation (Spearman's) of
both, and how much slower the layout that the search chooses is than the fastest measured. Below it are the same figures
by the fastest job of each layout. Each job is also set beside the median of the others: what a measurement cannot
repeat no prediction can meet.
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.jobs import SCRIPTS, environment, figures_of, fit_of, mpirun, part, threads
from benchmarks.small_gpt import small_gpt

MESHES = ((2, 1), (1, 2))
NAMES = ("batch", "model")
DRAWN = 20  # layouts for each that is trained


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
    parser.add_argument("--jobs", type=int, default=5, help="that train each layout (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each layout in a job (%(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of an epoch (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--machine", type=Path, help="its file (default: measured anew)")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    with tempfile.TemporaryDirectory() as folder:
        machine, file = args.machine or Path(folder) / "machine.toml", Path(folder) / "rows"
        if not args.machine:
            subprocess.run([str(SCRIPTS / "keras-par"), "calibrate", "--write", machine], env=environment(), check=True)
        rows = figures_of(job_of("plan", "--models", *args.models, "--layouts", args.layouts, "--machine", machine))
        file.write_text(json.dumps(rows))
        options = ["--rows", file, "--rounds", args.rounds, "--steps", args.steps]
        jobs = [figures_of(job_of("train", *options, "--job", number)) for number in range(args.jobs)]
    for place, row in enumerate(rows):
        row["ms_of_jobs"] = [job[place]["ms"] for job in jobs]
        row["ms"] = statistics.median(row["ms_of_jobs"])
    show(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def job_of(worker, *options):
    """The command of a job of two ranks."""
    return [*mpirun(2), *part("search", "--worker", worker, *options)]


def work(args):
    threads(1, between=2)  # as `keras-par run` has it: one waits, and in one thread the ranks may wait in other orders
    import keras_par as kp

    kp.init(seed="own")
    figures = WORKERS[args.worker](args)
    if kp.rank() == 0:
        print(json.dumps(figures), flush=True)


def plan(args):
    """For each model and layout what is predicted."""
    from keras_par.plan.machine import read_machine

    machine = read_machine(args.machine)
    return [row for name in args.models for row in planned(name, machine, args.layouts)]


def planned(name, machine, count):
    """The rows of a model."""
    from keras_par.comm import world
    from keras_par.searching.model_trace import look_at

    build, batch_size = builder_of(MODELS[name])
    trace = look_at(build)
    plans = plans_of(trace, machine, batch_size, count, name)
    rows = []
    for kind, mesh, layouts in world.current().all_gather_object(plans, "plans")[0]:
        seconds = predicted(trace, machine, batch_size, mesh, layouts)
        rows.append({"model": name, "kind": kind, "mesh": mesh, "predicted": seconds * 1e3})
        rows[-1] |= {"layouts": layouts, "machine": machine.text()}
    return rows


def predicted(trace, machine, batch_size, mesh, layouts):
    """Seconds of a step."""
    from keras_par.plan.cost import predict
    from keras_par.plan.training_setup import Setting

    setting = Setting(machine, dict(zip(NAMES, mesh, strict=True)), NAMES[0], batch_size)
    return predict(trace, {path: tuple(axes) for path, axes in layouts.items()}, setting).seconds


def builder_of(make):
    """A function that builds a model, compiled; and its rows of a batch."""
    import keras

    def build():
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model, loss, _ = make()
        model.compile(keras.optimizers.Adam(1e-4), loss)
        return model

    return build, make()[2]


def train(args):
    """For each row the time of a step in this job."""
    rows = json.loads(args.rows.read_text())
    figures = [{"ms": 0.0} for _ in rows]
    for name in dict.fromkeys(row["model"] for row in rows):
        places = [place for place, row in enumerate(rows) if row["model"] == name]
        random.Random(args.job).shuffle(places)
        build, batch_size = builder_of(MODELS[name])
        lie = [(rows[place]["mesh"], rows[place]["layouts"]) for place in places]
        times = train_in_turns([epoch_of(build, *each, batch_size, args.steps) for each in lie], args.rounds)
        for place, measured in zip(places, times, strict=True):
            figures[place]["ms"] = statistics.median(measured) / args.steps * 1e3
    return figures


def train_in_turns(epochs, rounds):
    """Seconds of the epochs of each, after one to warm up."""
    import keras_par as kp

    times = [[] for _ in epochs]
    for number in range(-1, rounds):
        for epoch, measured in zip(epochs, times, strict=True):
            kp.barrier()
            seconds = epoch()
            if number >= 0:
                measured.append(seconds)
    return times


WORKERS = {"plan": plan, "train": train}


def plans_of(trace, machine, batch_size, count, name):
    """What is trained: (kind, mesh, layouts)."""
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.find import find
    from keras_par.searching.problem_builder import Maker

    draw = random.Random(name)
    found = [("data parallel", (2, 1), {})]
    searched = find(trace, machine, 2, batch_size)
    for kind, each in [("found", searched.best), *(("best of its mesh", other) for other in searched.others)]:
        found.append((kind, tuple(each.mesh.values()), each.layouts))
    settings = [Setting(machine, dict(zip(NAMES, mesh, strict=True)), NAMES[0], batch_size) for mesh in MESHES]
    makers = [Maker(trace, setting) for setting in settings]
    drawn = {}  # by predicted seconds
    for _ in range(DRAWN * count):
        maker = draw.choice(makers)
        layouts = maker.layouts({node: draw.randrange(len(maker.states[node])) for node in maker.variable_nodes})
        if layouts:
            mesh = tuple(maker.setting.mesh.values())
            drawn[predicted(trace, machine, batch_size, mesh, layouts)] = ("drawn", mesh, layouts)
    return found + [drawn[seconds] for seconds in spread(list(drawn), count - len(found))]


def spread(values, count):
    """So many of the values, those nearest to points that divide their range evenly; all if they are fewer."""
    import numpy as np

    if len(set(values)) <= count:
        return sorted(set(values))
    kept = []
    for point in np.linspace(min(values), max(values), max(count, 0)):
        kept.append(min(set(values) - set(kept), key=lambda value: abs(value - point)))
    return kept


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
        repeated = statistics.mean(repeats(rows))
        console.print(
            f"{name}: rank correlation {correlation:.3f} of {len(rows)} layouts, of a job with the others "
            f"{repeated:.3f}; what is found takes {chosen['ms'] / rows[0]['ms']:.2f} of the fastest measured"
        )
        best = {id(row): min(row["ms_of_jobs"]) for row in rows}
        told = [f"over {a}x{b} {told_of(rows, best, (a, b)):.3f}" for a, b in MESHES]
        console.print(
            f"{name}, by the fastest job of each layout: rank correlation {told_of(rows, best):.3f}, "
            f"{', '.join(told)}; what is found takes {best[id(chosen)] / min(best.values()):.2f}"
        )


def told_of(rows, measured, mesh=None):
    """The rank correlation of what is predicted with what is measured, by the row's identity, over a mesh or all."""
    rows = [row for row in rows if mesh is None or tuple(row["mesh"]) == mesh]
    return spearman([measured[id(row)] for row in rows], [row["predicted"] for row in rows])


def repeats(rows):
    """The rank correlation of each job with the median of the others."""
    jobs = list(zip(*(row["ms_of_jobs"] for row in rows), strict=True))
    for number, job in enumerate(jobs):
        others = zip(*(other for each, other in enumerate(jobs) if each != number), strict=True)
        yield spearman(job, [statistics.median(each) for each in others])


def spearman(x, y):
    """The correlation of the ranks."""
    import numpy as np

    ranks = [np.argsort(np.argsort(values)) for values in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


if __name__ == "__main__":
    main()
