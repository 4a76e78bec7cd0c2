"""Sets what the search finds for models of KerasHub beside the layout maps that people made for them.

    python -m benchmarks maps

Nothing is trained: a step's time, the bytes of a rank and those that it sends are what the plan says for 8 ranks of the
shipped machine `gpu-host`. The maps are those of this package's catalogue, and of KerasHub where it has one. The search
is asked for the best layouts of the same mesh, and for the best of all meshes.
"""

import argparse
import json
from pathlib import Path

NUM_RANKS = 8
MESHES = ((1, 8), (2, 4))
NAMES = ("batch", "model")
ROWS, LENGTH = 16, 512
HEADS = {"num_query_heads": 32, "num_key_value_heads": 8}
# The family in KerasHub, its file in the catalogue, and its sizes: vocabulary, blocks, widths, and others by name.
MODELS = {
    "Llama 2 7B": ("Llama", "llama", 32_000, 32, 4096, 11_008, HEADS | {"num_key_value_heads": 32}),
    "Llama 3 8B": ("Llama3", "llama", 128_256, 32, 4096, 14_336, HEADS),
    "Mistral 7B": ("Mistral", "mistral", 32_000, 32, 4096, 14_336, HEADS),
    "Gemma 7B": (
        *("Gemma", "gemma", 256_000, 28, 3072, 49_152),
        {"num_query_heads": 16, "num_key_value_heads": 16, "head_dim": 256},
    ),
    "Qwen 2.5 3B": ("Qwen", "qwen", 151_936, 36, 2048, 11_008, {"num_query_heads": 16, "num_key_value_heads": 2}),
    "Qwen 3 8B": ("Qwen3", "qwen", 151_936, 36, 4096, 12_288, HEADS | {"head_dim": 128}),
    "Phi-3 mini": ("Phi3", "phi3", 32_064, 32, 3072, 8192, HEADS | {"num_key_value_heads": 32}),
    "OPT 6.7B": ("OPT", "opt", 50_272, 32, 4096, 16_384, {"num_heads": 32, "max_sequence_length": 2048}),
    "Bloom 7.1B": ("Bloom", "bloom", 250_880, 30, 4096, 16_384, {"num_heads": 32}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    figures = [row for name in args.models for row in of_model(name)]
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))


def of_model(name):
    """The figures of a model: a row for each map and mesh, and for what the search finds there and of all meshes."""
    import keras_hub

    from keras_par.searching.known_machines import machine_of

    family, file, words, num_layers, width, inner, others = MODELS[name]
    models = keras_hub.models
    sizes = {"vocabulary_size": words, "num_layers": num_layers, "hidden_dim": width, "intermediate_dim": inner}
    kind = getattr(models, f"{family}Backbone")

    def build():
        return getattr(models, f"{family}CausalLM")(backbone=kind(**sizes, **others), preprocessor=None)

    compared = beside(build, file, kind, machine_of("gpu-host"), NUM_RANKS, MESHES, ROWS, LENGTH)
    return [{"model": name, **row} for row in compared]


def beside(build, file, kind, machine, num_ranks, meshes, num_rows, length):
    """Rows for a model with the maps of a file and, if it has one, of its backbone's class."""
    import keras

    from keras_par.keras_patches.install import install
    from keras_par.plan.cost import predict
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.find import find
    from keras_par.searching.model_trace import look_at

    def compiled():
        model = build()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    install()
    trace = look_at(compiled, [length] * 2)
    keras.utils.clear_session(free_memory=False)
    rows = []
    for sizes in meshes:
        mesh = dict(zip(NAMES, sizes, strict=True))
        maps = {"catalogue": catalogue_map(file, trace, mesh)}
        if hasattr(kind, "get_layout_map"):
            maps["KerasHub"] = own_map(kind, trace, mesh)
        for who, layouts in maps.items():
            rows.append(row_of(who, mesh, predict(trace, layouts, Setting(machine, mesh, NAMES[0], num_rows))))
        rows.append(row_of("search", mesh, find(trace, machine, num_ranks, num_rows, mesh=mesh).best.prediction))
    best = find(trace, machine, num_ranks, num_rows).best
    rows.append(row_of("search, any mesh", best.mesh, best.prediction))
    return rows


def catalogue_map(file, trace, mesh):
    """The layouts that a file of the catalogue gives the variables."""
    from keras_par.distribution.load_strategy import find
    from keras_par.plan.layout import matches
    from keras_par.plan.strategy_file import read_strategy

    entries = read_strategy(find(file)).entries
    paths = [parameter.path for parameter in trace.parameters]
    said = {path: entry.axes for path in paths for entry in entries if matches(entry.pattern, path)}
    return fitting(said, trace, mesh)


def own_map(kind, trace, mesh):
    """The layouts that KerasHub's own map gives the variables."""
    import keras

    ranks = [f"cpu:{rank}" for rank in range(mesh["batch"] * mesh["model"])]
    devices = keras.distribution.DeviceMesh(tuple(mesh.values()), list(mesh), ranks)
    layout_map = kind.get_layout_map(devices)
    said = {parameter.path: layout_map[parameter.path] for parameter in trace.parameters}
    return fitting({path: tuple(layout.axes) for path, layout in said.items() if layout is not None}, trace, mesh)


def fitting(said, trace, mesh):
    """Of layouts those that the mesh can have; other variables are whole, as a few heads of keys and values are."""
    from keras_par.plan.layout import complaint, divided
    from keras_par.plan.mesh import Mesh

    plan = Mesh(tuple(mesh.values()), tuple(mesh), tuple(range(mesh["batch"] * mesh["model"])))
    shapes = {parameter.path: parameter.shape for parameter in trace.parameters}
    layouts = {path: divided(axes, plan) for path, axes in said.items() if axes}
    return {path: axes for path, axes in layouts.items() if any(axes) and complaint(shapes[path], axes, plan) is None}


def row_of(who, mesh, prediction):
    return {
        "who": who,
        "mesh": tuple(mesh.values()),
        "ms": prediction.seconds * 1e3,
        "held": prediction.num_bytes,
        "sent": prediction.crossing_bytes,
    }


def show(figures):
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "layouts", "mesh", "ms a step", "a rank holds, GB", "and sends, GB", box=None)
    for row in figures:
        sizes = (f"{row[name] / 2**30:.1f}" for name in ("held", "sent"))
        table.add_row(row["model"], row["who"], "x".join(map(str, row["mesh"])), f"{row['ms']:.1f}", *sizes)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
