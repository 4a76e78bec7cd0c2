"""What the ranks of a pool do for the tests of the automatic search; and the models that are searched."""

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable
from random import Random
from unittest import mock

import keras
import numpy as np
from keras import layers

from tests import random_models

SUMS_OF_GRADIENTS = "kp.gradients"
NORMS = "kp.norms"


def two_layers(width: int = 64, hidden: int = 256) -> keras.Model:
    """Two products with a ReLU between them."""
    x = inputs = layers.Input((width,))
    x = layers.Dense(hidden, "relu", name="up")(x)
    model = keras.Model(inputs, layers.Dense(width, name="down")(x), name="two_layers")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def gpt(num_layers: int = 2, width: int = 64, heads: int = 4, length: int = 16, words: int = 128) -> keras.Model:
    """Blocks of attention and two products."""
    x = inputs = layers.Input((length,), dtype="int32")
    x = layers.Embedding(words, width, name="embedding")(x)
    for number in range(num_layers):
        inner = layers.LayerNormalization(name=f"norm_{number}a")(x)
        attention = layers.MultiHeadAttention(heads, width // heads, name=f"attention_{number}")
        x = x + attention(inner, inner, use_causal_mask=True)
        inner = layers.LayerNormalization(name=f"norm_{number}b")(x)
        inner = layers.Dense(4 * width, "gelu", name=f"up_{number}")(inner)
        x = x + layers.Dense(width, name=f"down_{number}")(inner)
    x = layers.LayerNormalization(name="norm_f")(x)
    model = keras.Model(inputs, layers.Dense(words, name="logits")(x), name="gpt")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def softmax_of_vocabulary() -> keras.Model:
    """A softmax over a vocabulary, whose loss is made of its logits."""
    x = inputs = layers.Input((8,))
    model = keras.Model(inputs, layers.Dense(64, "softmax", name="words")(layers.Dense(16, name="hidden")(x)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def recurrent() -> keras.Model:
    """A loop, which takes its weights whole."""
    x = inputs = layers.Input((6,), dtype="int32")
    x = layers.LSTM(16, name="loop")(layers.Embedding(32, 16, name="table")(x))
    model = keras.Model(inputs, layers.Dense(2, name="head")(x))
    model.compile("adam", "mse")
    return model


def penalized() -> keras.Model:
    """Losses of weights beside that of the outputs, and a number that is made before the model runs."""
    x = inputs = layers.Input((16,))
    x = layers.Dense(32, "relu", kernel_regularizer="l2", name="up")(x) * keras.ops.sqrt(2.0)
    model = keras.Model(inputs, layers.Dense(8, kernel_regularizer="l2", name="down")(x))
    model.compile("adam", "mse")
    return model


def drawn(kind: str, parts) -> Callable[[], keras.Model]:
    """A function that builds a model of random parts."""

    def build() -> keras.Model:
        model = random_models.build(kind, parts)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
        return model

    return build


def long_gpt() -> keras.Model:
    """A GPT whose attention takes most of its memory."""
    return gpt(2, 64, 8, 256, 128)


def normalized() -> keras.Model:
    """A layer that changes a state."""
    x = inputs = layers.Input((16,))
    x = layers.BatchNormalization(name="norm")(layers.Dense(32, "gelu", name="hidden")(x))
    model = keras.Model(inputs, layers.Dense(4, name="head")(x))
    model.compile("sgd", "mse")
    return model


def wide():
    """Products whose weights are large enough to be divided by a stage of ZeRO; a bias is not."""
    x = inputs = layers.Input((256,))
    for i in range(3):
        x = layers.Dense(256, "tanh", name=f"wide_{i}")(x)
    model = keras.Model(inputs, x)
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    return model


def updated_whole():
    """The same with an optimizer that looks at whole variables."""
    model = wide()
    model.compile(keras.optimizers.Lamb(1e-3), "mse")
    return model


ALL = (wide, updated_whole, two_layers, gpt, long_gpt, normalized, softmax_of_vocabulary, recurrent, penalized)
MODELS = {each.__name__: each for each in ALL}


def seen(build: Callable[[], keras.Model]):
    """The trace that the search makes of a model, of which no more is left."""
    from keras_par.searching.model_trace import look_at

    trace = look_at(build)
    keras.utils.clear_session(free_memory=False)
    return trace


def look(name: str) -> dict:
    """What the search sees of a model of the table."""
    trace = seen(MODELS[name])
    return {"operations": trace.operations, "asides": trace.asides}


def compare_drawn(kind: str, parts, mesh: tuple[int, int], choices) -> dict:
    """What a step of a model of random parts sends by its plan and by its trace, with random layouts."""
    layout = random_models.layout_of(random_models.build(kind, parts), mesh, choices)
    keras.utils.clear_session(free_memory=False)
    [found] = compare(drawn(kind, parts), layout, mesh)
    return found


def compare_named(name: str, layout: dict, mesh: tuple[int, ...], **options) -> list[dict]:
    """The same of a model of the table."""
    return compare(MODELS[name], layout, mesh, batch_size=4 * mesh[0], **options)


def compare(
    build: Callable[[], keras.Model],
    layout: dict,
    mesh: tuple[int, ...],
    recomputed: tuple[tuple[str, ...], ...] = ((),),
    batch_size: int = 8,
    zero: int = 0,
) -> list[dict]:
    """What a step sends as the search predicts it, and as tracing it on a rank counts it: kinds with bytes.

    For each of these choices of layers that are computed again, in a stage of ZeRO.
    """
    from keras_par.plan.cost import predict
    from keras_par.plan.layout import divided
    from keras_par.plan.mesh import Mesh
    from keras_par.plan.training_setup import Setting
    from keras_par.searching.known_machines import machine_of
    from keras_par.searching.meshes import named

    trace, sizes = seen(build), named(mesh)
    setting = Setting(machine_of("cpu-cluster"), sizes, "batch", batch_size, zero)
    plan = Mesh(mesh, tuple(sizes), tuple(range(math.prod(mesh))))
    layouts = {path: divided(axes, plan) for path, axes in layout.items()}
    found = []
    for names in recomputed:
        prediction = predict(trace, layouts, setting, names)
        calls, held = traced(build, layout, mesh, {"recompute": names, "zero": zero}, batch_size)
        keras.utils.clear_session(free_memory=False)
        own = [call for call in calls if not call.name.startswith((SUMS_OF_GRADIENTS, NORMS))]
        gradients = [call for call in calls if call.name.startswith(SUMS_OF_GRADIENTS)]
        about = {
            "predicted": Counter(f"{kind} {size}" for kind, size, _ in prediction.collectives),
            "counted": Counter(f"{call.kind} {call.num_bytes}" for call in own),
            "predicted_bytes": sum(size for _, size, _ in prediction.collectives) + prediction.gradient_bytes,
            "counted_bytes": sum(call.num_bytes or 0 for call in calls),
            "predicted_gradients": prediction.gradient_bytes,
            "counted_gradients": sum(call.num_bytes or 0 for call in gradients),
            "predicted_variables": prediction.parts["variables"],
            "counted_variables": held,
            "layers": {f"{call.kind} {call.num_bytes}": call.layer for call in own},
        }
        found.append(about)
    return found


def traced(
    build: Callable[[], keras.Model],
    layout: dict,
    mesh: tuple[int, ...],
    options: dict,
    batch_size: int,
) -> tuple[list, int]:
    """The collectives of a step as rank 0 of a job that does not exist traces it, and the bytes of its variables."""
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.planned import PlannedCommunicator
    from keras_par.keras_patches.models.binding import bind, bound
    from keras_par.keras_patches.trainer.abstract_step import trace_training_step
    from keras_par.searching.meshes import named

    before = world.replace(PlannedCommunicator(range(math.prod(mesh))))
    try:
        device_mesh = keras.distribution.DeviceMesh(mesh, list(named(mesh)))
        layout_map = keras.distribution.LayoutMap(device_mesh)
        for path, axes in layout.items():
            layout_map[path] = axes
        with kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch", **options).scope():
            model = build()
            if bound(model) is None:
                bind(model)
            trace_training_step(model, batch_size)
        described = kp.describe(model)
        return described.collectives["train_step"], described.local_bytes
    finally:
        world.replace(before)


def search_and_train(name: str, options: dict, machine: str, batch_size: int = 8) -> dict:
    """Searches, trains two epochs by what was found, and says what that is."""
    import keras_par as kp

    keras.utils.set_random_seed(3)
    strategy = kp.search(MODELS[name], batch_size, machine=machine_from(machine), **options)
    with strategy.scope():
        trained = train(name, batch_size)
    return {
        **trained,
        "plan": strategy.explain(),
        "layout": {e.pattern: e.axes for e in strategy.plan.entries},
        "options": strategy.plan.options,
    }


def train(name: str, batch_size: int = 8) -> dict:
    """Trains two epochs of three steps."""
    keras.utils.set_random_seed(3)
    model = MODELS[name]()
    x, y = data_of(model, 3 * batch_size)
    model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    paths = [variable.path for variable in model.weights]
    return {"weights": model.get_weights(), "paths": paths, "again": computed_again(model)}


def computed_again(model: keras.Model) -> list[str]:
    """The names of the layers that Keras computes again in the backward pass."""
    return [layer.name for layer in model.layers if layer._remat_mode is not None]


def data_of(model: keras.Model, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows that fit a model."""
    generator = np.random.default_rng(1)
    shape = (num_rows, *model.input_shape[1:])
    is_words = "int" in model.inputs[0].dtype
    x = generator.integers(0, 32, shape) if is_words else generator.normal(size=shape).astype("float32")
    out = (num_rows, *model.output_shape[1:])
    if "sparse" in str(getattr(model.loss, "name", model.loss)):
        return x, generator.integers(0, out[-1], out[:-1])
    return x, generator.normal(size=out).astype("float32")


def refusals() -> dict[str, str]:
    """What is said of searches that cannot be."""
    import keras_par as kp

    wrong = {
        "memory": {"memory": "10KB"},
        "batch": {"batch_size": 7, "mesh": (2, 1)},
        "search": {"search": "magic"},
        "size": {"memory": "much"},
        "mesh": {"mesh": (2,)},
        "pattern": {"layout": {"upp/kernel": (None, "model")}, "search": "propagation"},
        "axis": {"layout": {"up/kernel": (None, "modell")}},
        "dims": {"layout": {"up/kernel": ("model",)}},
        "machine": {"machine": "nowhere"},
    }
    found = {}
    for name, options in wrong.items():
        try:
            kp.search(two_layers, **{"batch_size": 8, "machine": "cpu-cluster", **options})
        except ValueError as error:
            found[name] = str(error)
    return found


def find_best(
    name: str,
    batch_size: int,
    num_ranks: int,
    machine: str,
    mesh=None,
    search: str = "dynamic",
    fixed=None,
    num_axes: int = 2,
    memory: float | None = None,
) -> dict:
    """The plan for a model on a machine, and what it sends."""
    from keras_par.searching.find import find
    from keras_par.searching.meshes import named

    known = machine_from(machine)
    sizes = None if mesh is None else named(mesh)
    best = find(seen(MODELS[name]), known, num_ranks, batch_size, search, memory, sizes, fixed, num_axes).best
    prediction = best.prediction
    found = {"mesh": best.mesh, "layouts": best.layouts, "seconds": prediction.seconds}
    found |= {"bytes": prediction.num_bytes, "recomputed": best.recomputed, "zero": best.zero}
    return {**found, "collectives": prediction.collectives}


def search_drawn(
    kind: str, parts, searches, num_ranks: int, batch_size: int, memory: float, machine: str, alone: bool = False
) -> list[dict]:
    """What each search finds for a model of random parts in so much memory, or the sentence that nothing is.

    With `alone` also the seconds of what it finds for each mesh alone.
    """
    from keras_par.searching.find import find
    from keras_par.searching.meshes import meshes

    trace, known = seen(drawn(kind, parts)), machine_from(machine)
    results: list[dict] = []
    for search in searches:
        try:
            found = find(trace, known, num_ranks, batch_size, search, memory)
        except ValueError as error:
            results.append({"said": str(error)})
            continue
        best = found.best
        about = {"mesh": best.mesh, "bytes": best.prediction.num_bytes, "seconds": best.prediction.seconds}
        others = [(each.prediction.seconds, each.prediction.num_bytes) for each in found.others]
        results.append({**about, "others": others, "alone": []})
        for mesh in meshes(num_ranks, 2) if alone else ():
            with contextlib.suppress(ValueError):
                plan = find(trace, known, num_ranks, batch_size, search, memory, mesh)
                results[-1]["alone"].append(plan.best.prediction.seconds)
    return results


def costs_of_best(kind: str, parts, batch_size: int, machine: str, settings) -> list[tuple[tuple, tuple]]:
    """Seconds and bytes of the best plan for a model of random parts: as the search adds them up, and as predicted.

    For each mesh with a size of buckets, or None for the usual one. Bytes as if all were held at a time, without those
    of which the largest counts.
    """
    from keras_par.plan import cost
    from keras_par.plan.training_setup import Setting
    from keras_par.searching import dynamic, problem_builder

    trace, results = seen(drawn(kind, parts)), []
    for mesh, bucket_bytes in settings:
        sizes = dict(zip(("batch", "model"), mesh, strict=True))
        size = bucket_bytes or cost.BUCKET_BYTES
        patches = [mock.patch.object(module, "BUCKET_BYTES", size) for module in (cost, problem_builder)]
        with contextlib.ExitStack() as stack:
            for patch in (*patches, mock.patch.object(cost, "most_held", all_held)):
                stack.enter_context(patch)
            made = problem_builder.Maker(trace, Setting(machine_from(machine), sizes, "batch", batch_size))
            problem = made.problem()
            choice = dynamic.Solver(problem).solve()
            found = cost.predict(trace, made.layouts(choice), made.setting)
        held = found.num_bytes - found.parts["gathered"]
        results.append((problem.cost(choice), (found.seconds, held)))
    return results


def all_held(moments, bucket_bytes: int) -> dict[str, int]:
    """What would be held if nothing went."""
    totals = {name: sum(getattr(each, name) for each in moments) for name in ("kept", "gradients", "sums", "shared")}
    return {**totals, "shared": min(totals["shared"], bucket_bytes)}


def machine_from(text: str):
    """The machine that a file of this text describes."""
    import tempfile
    from pathlib import Path

    from keras_par.plan.machine import read_machine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_text(text)
        return read_machine(path)


def train_inline(name: str, mesh: tuple[int, int], machine: str, batch_size: int = 8, memory=None) -> dict:
    """Trains a model that is built as it is under `kp.AutoParallel`, and compiles it once more."""
    import keras_par as kp

    keras.utils.set_random_seed(3)
    strategy = kp.AutoParallel(batch_size, mesh=mesh, machine=machine_from(machine), memory=memory)
    keras.distribution.set_distribution(strategy)
    try:
        model = MODELS[name]()
        x, y = data_of(model, 3 * batch_size)
        model.fit(x, y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
        described, weights, again = kp.describe(model), model.get_weights(), computed_again(model)
        paths = [variable.path for variable in model.weights]
        model.compile(keras.optimizers.SGD(0.1), model.loss)
        model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
    found = {"held": described.local_bytes, "whole": described.num_bytes, "options": strategy.plan.options}
    found["stage"] = strategy.keras_par_options.zero
    return {"weights": weights, "paths": paths, "again": again, "again_after_compile": computed_again(model), **found}


def search_unmeasured(folder: str) -> dict:
    """Searches where no machine was measured before, and trains a model whose layers have no names."""
    import os

    import keras_par as kp

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    before = os.environ.get("KERAS_PAR_CACHE")
    os.environ["KERAS_PAR_CACHE"] = folder
    try:
        strategy = kp.search(unnamed, 8, mesh=(1, 2))
    finally:
        if before is None:
            del os.environ["KERAS_PAR_CACHE"]
        else:
            os.environ["KERAS_PAR_CACHE"] = before
    with strategy.scope():
        return fit_unnamed()


def train_unnamed() -> dict:
    """The same in one process."""
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    return fit_unnamed()


def unnamed() -> keras.Model:
    """Two products that Keras names."""
    model = keras.Sequential([layers.Input((16,)), layers.Dense(32, "relu"), layers.Dense(8)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fit_unnamed() -> dict:
    model = unnamed()
    x, y = data_of(model, 24)
    model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    return {"weights": model.get_weights(), "paths": [variable.path for variable in model.weights]}


def train_two_inline(machine: str) -> dict:
    """Under one `kp.AutoParallel` a model that is divided, and one whose optimizer has state."""
    import logging

    import keras_par as kp
    from keras_par.sharding.variable_views import sharded

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("keras_par").addHandler(handler)
    keras.utils.set_random_seed(3)
    keras.distribution.set_distribution(kp.AutoParallel(8, mesh=(1, 2), machine=machine_from(machine)))
    try:
        first, second = two_layers(), two_layers()  # of equal paths
        second.optimizer.build(second.trainable_variables)
        for model in (first, second):
            x, y = data_of(model, 16)
            model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    finally:
        keras.distribution.set_distribution(None)
        logging.getLogger("keras_par").removeHandler(handler)
    return {
        "rank": kp.rank(),
        "divided": bool(sharded(first.variables)),
        "whole": not sharded(second.variables),
        "told": any("stays whole" in text for text in told),
    }


def seconds_of_widths(
    seed: int, num_layers: int, num_widths: int, num_ranks: int, batch_size: int, machine: str, most_cells: int
) -> tuple[dict[str, float], list[str]]:
    """Seconds of a step that each search finds for dense layers of a few widths in any order, and the warnings.

    What else could be is asked about, too.
    """
    from keras_par.plan.training_setup import Setting
    from keras_par.searching import dynamic
    from keras_par.searching.alternatives import alternatives
    from keras_par.searching.find import find

    draw = Random(seed)

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((64,))])
        for _ in range(num_layers):
            model.add(layers.Dense(64 * draw.randint(1, num_widths), "relu"))
        model.compile("adam", "mse")
        return model

    trace, found = seen(build), {}
    with mock.patch.object(dynamic, "MOST_CELLS", most_cells), warnings.catch_warnings(record=True) as said:
        for mode in ("dynamic", "recursive"):
            plan = find(trace, machine_from(machine), num_ranks, batch_size, mode)
            found[mode] = plan.best.prediction.seconds
            setting = Setting(machine_from(machine), plan.best.mesh, "batch", batch_size)
            assert alternatives(trace, setting, {}, plan)
    return found, [str(each.message) for each in said]


def classes_of_biases() -> list[int]:
    """The classes of the biases of layers from 4 to 8, 8 to 2, 2 to 8, 8 to 2 and 2 to 8."""
    from keras_par.searching.classes import tensor_classes

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), *(layers.Dense(width) for width in (8, 2, 8, 2, 8))])
        model.compile("adam", "mse")
        return model

    trace = seen(build)
    classes = tensor_classes(trace, {})
    of_path = {tensor.path: kind for tensor, kind in zip(trace.tensors, classes, strict=True) if tensor.path}
    return [kind for path, kind in of_path.items() if path.endswith("bias")]


def names_without_rule() -> list[str]:
    """Those of functions whose cost is known."""
    from keras_par.plan.operation_cost import FLOPS_PER_ELEMENT
    from keras_par.sharding.rules.table import RULES

    return sorted(set(FLOPS_PER_ELEMENT) - set(RULES))
