"""Measures how near the memory that the search predicts is to what a rank takes at its peak.

    python -m benchmarks memory

Each model is trained with each kind of layout in a job of its own of two ranks. What a rank takes is the peak of the
process's resident memory, beyond what it took before the model was made: by then it has trained a small model of the
same kind, so that TensorFlow is complete, and holds the data. Memory that is freed goes back to the system at once
(glibc.malloc.mmap_threshold), so that the peak is of what was in use.
"""

import argparse
import gc
import json
from pathlib import Path

from benchmarks.jobs import figures_of, mpirun, part, threads
from benchmarks.small_gpt import small_gpt

KINDS = {"data parallel": (2, 1), "found for 1x2": (1, 2), "stored by rows": (2, 1)}
NAMES = ("batch", "model")
STEPS = 3


def mlp(scale):
    from keras import Input, Sequential
    from keras.layers import Dense

    width = 64 * scale
    layers = [Dense(width, "gelu") for _ in range(6)]
    return Sequential([Input((width,)), *layers, Dense(width)]), "mse", 128 * scale


def gpt(scale):
    return *small_gpt(length=8 * scale, words=256 * scale, width=16 * scale, heads=8, blocks=4), 16


def cnn(scale):
    import keras
    from keras import Input, Sequential
    from keras.layers import BatchNormalization, Conv2D, Dense, Flatten, MaxPooling2D, ReLU

    parts = [Conv2D(4 * scale, 3), BatchNormalization(), ReLU(), Conv2D(8 * scale, 3), BatchNormalization(), ReLU()]
    model = Sequential([Input((32, 32, 3)), *parts, MaxPooling2D(), Flatten(), Dense(32 * scale, "relu"), Dense(10)])
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), 256


MODELS = {"mlp": (mlp, 32), "gpt": (gpt, 32), "cnn": (cnn, 8)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.models[0], args.kinds[0])
    tunables = "glibc.malloc.mmap_threshold=65536"
    figures = []
    for model in args.models:
        for kind in args.kinds:
            command = [*mpirun(2), *part("memory", "--worker", "--models", model, "--kinds", kind)]
            figures += figures_of(command, GLIBC_TUNABLES=tunables)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def worker(name, kind):
    threads(1)
    import keras_par as kp
    from keras_par.comm import world

    kp.init(seed="own")
    make, scale = MODELS[name]
    train(make, 2, kind)
    prediction, peak = train(make, scale, kind)
    figures = {"model": name, "kind": kind, "predicted": prediction.num_bytes, "peak": peak}
    figures |= {"parts": dict(prediction.parts)}
    rows = world.current().all_gather_object(figures, "figures")
    if kp.rank() == 0:
        print(json.dumps([max(rows, key=lambda row: row["peak"])]), flush=True)


def train(make, scale, kind):
    """Trains some steps; returns the prediction, and bytes of the process's peak beyond what it had before."""
    import keras
    import tensorflow as tf

    import keras_par as kp
    from keras_par.plan.cost import predict
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.known_machines import machine_of
    from keras_par.searching.model_trace import look_at

    known = {}

    def build():
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        model, loss, known["batch_size"] = make(scale)
        model.compile(keras.optimizers.Adam(1e-4), loss)
        known["shapes"] = model.input_shape[1:], model.output_shape[1:]
        return model

    trace = look_at(build)  # which makes no weights
    batch_size = known["batch_size"]
    setting = Setting(machine_of("cpu-cluster"), dict(zip(NAMES, KINDS[kind], strict=True)), NAMES[0], batch_size)
    layouts = layouts_of(trace, setting, kind)
    x, y = rows_of(*known["shapes"], batch_size // setting.mesh[NAMES[0]])
    data = tf.data.Dataset.from_tensors((tf.constant(x), tf.constant(y))).repeat(STEPS)
    del x, y
    gc.collect()
    before = start_of_peak()
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(tuple(KINDS[kind]), list(NAMES)))
    for path, axes in layouts.items():
        layout_map[path] = tuple(axes)
    options = {"auto_shard_dataset": False}
    strategy = (
        kp.ModelParallel(layout_map=layout_map, batch_dim_name=NAMES[0], **options)
        if layouts
        else kp.DataParallel(**options)
    )
    with strategy.scope():
        model = build()
    model.fit(data, shuffle=False, verbose=0)
    peak = memory("VmHWM") - before
    return predict(trace, layouts, setting), peak


def layouts_of(trace, setting, kind):
    """Where the variables lie."""
    from keras_par.searching.find import find
    from keras_par.searching.problem_builder import options

    if kind == "data parallel":
        return {}
    if kind == "stored by rows":
        return {each.path: options(each.shape, setting)[-1] for each in trace.parameters if each.is_trainable}
    return find(trace, setting.machine, 2, setting.batch_size, mesh=setting.mesh).best.layouts


def rows_of(shape, out, num_rows):
    """Random rows of such shapes: words where there is one dim, else numbers; classes but where both are alike."""
    import numpy as np

    rows = np.random.default_rng(0)
    is_words, is_alike = len(shape) == 1 and shape != out, shape == out
    x = rows.integers(0, 500, (num_rows, *shape)) if is_words else rows.normal(size=(num_rows, *shape))
    x = x.astype("int32" if is_words else "float32")
    return x, x if is_alike else rows.integers(0, 10, (num_rows, *out[:-1]))


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "layout", "predicted MB", "peak MB", "predicted / peak", "parts")
    for row in figures:
        parts = " ".join(f"{name} {value / 2**20:.0f}" for name, value in row["parts"].items())
        predicted, peak = row["predicted"] / 2**20, row["peak"] / 2**20
        table.add_row(row["model"], row["kind"], f"{predicted:.0f}", f"{peak:.0f}", f"{predicted / peak:.2f}", parts)
    Console(width=140).print(table)


def memory(name):
    """Bytes of this process, as the system says."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def start_of_peak():
    """Forgets the peak; returns what is taken now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


if __name__ == "__main__":
    main()
