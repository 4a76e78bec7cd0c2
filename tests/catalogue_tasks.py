"""What the pools do for the tests of the catalogue of strategies."""

import math
import time

import keras

from tests.catalogue_cases import CASES, data

SEED = 13
OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9), "adam": lambda: keras.optimizers.Adam(1e-2)}

WITHOUT_MESH = ("data-parallel", "data-parallel-bf16", "zero-1", "zero-2", "zero-3", "fsdp", "hsdp")


def train_plain(name: str) -> dict:
    """Trains a case by Keras as it is, in one process, with the weights it began with."""
    result = fit(name)
    keras.utils.set_random_seed(SEED)
    return {**result, "initial": CASES[name].model().get_weights()}


def train_divided(name: str, mesh: tuple[int, int], run_eagerly: bool) -> dict:
    """Trains a case under the strategy of its file, on a mesh."""
    import keras_par as kp

    file = CASES[name].strategy
    strategy = kp.load_strategy(file, mesh=None if file in WITHOUT_MESH else mesh)
    with strategy.scope():
        result = fit(name, run_eagerly)
    return {**result, "rank": kp.rank(), "size": kp.size()}


def fit(name: str, run_eagerly: bool = False) -> dict:
    case = CASES[name]
    keras.utils.set_random_seed(SEED)
    model = case.model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[case.optimizer](), loss, jit_compile=False, run_eagerly=run_eagerly)
    x, y = data(model)
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)  # 3 steps
    shapes = {variable.path: tuple(variable.shape) for variable in model.weights}
    held = {variable.path: tuple(getattr(variable, "local_shape", variable.shape)) for variable in model.weights}
    return {
        "weights": model.get_weights(),
        "shapes": shapes,
        "held": held,
        "fraction": sum(map(math.prod, held.values())) / sum(map(math.prod, shapes.values())),
    }


def load(arguments: list) -> dict:
    """What `load_strategy` makes of its arguments."""
    import keras_par as kp

    shapes = {"device mesh": ((1, 1, 2), ("batch", "more", "model")), "other axes": ((1, 2), ("batch", "columns"))}
    if len(arguments) > 1 and arguments[1] in tuple(shapes):
        arguments = [arguments[0], keras.distribution.DeviceMesh(*shapes[arguments[1]])]
    strategy = kp.load_strategy(*arguments)
    return {
        "kind": type(strategy).__name__,
        "shape": tuple(strategy.device_mesh.shape),
        "batch": strategy.batch_dim_name,
        "auto_shard_dataset": strategy.auto_shard_dataset,
        "options": tuple(vars(strategy.keras_par_options).values()),
    }


def made_unevenly(path: str) -> dict:
    """Which variables a strategy's file divides of a model with three heads and 15 units, and what is logged of it."""
    import keras_par as kp
    from tests.random_tasks import logged

    with logged() as messages, kp.load_strategy(path).scope():
        x = keras.layers.Input((5, 8))
        y = keras.layers.MultiHeadAttention(3, 4, name="attention")(x, x)
        model = keras.Model(x, keras.layers.Dense(4, name="down")(keras.layers.Dense(15, name="up")(y)))
    parts = [each for each in model.weights if getattr(each, "local_shape", each.shape) != each.shape]
    return {"size": kp.size(), "divided": [each.path for each in parts], "messages": messages}


def train_with_other_names() -> None:
    """Trains a model of which no layer is called as the file has it."""
    import numpy as np

    import keras_par as kp

    with kp.load_strategy("layerwise").scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2, name="mine")])
        model.compile("sgd", "mse")
    model.fit(np.zeros((4, 4)), np.zeros((4, 2)), verbose=0)


def look_up(num_patterns: int) -> dict:
    """What a layout map and Keras's own say of paths, and the seconds that the first needs for many."""
    from keras_par.distribution.load_strategy import LayoutMap

    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    maps = LayoutMap(mesh), keras.distribution.LayoutMap(mesh)
    patterns = {f"layer_{number}/.*": (None, "model") for number in range(200)}
    patterns |= {"layer_1/kernel": ("model", None), "layer_2/.*kernel": ("model", None)}
    said: list[list] = [[], []]
    for each, found in zip(maps, said, strict=True):
        for pattern, axes in patterns.items():
            each[pattern] = axes
        for path in ("layer_1/kernel", "layer_2/kernel", "layer_3/bias", "other"):
            try:
                found.append(None if each[path] is None else each[path].axes)
            except ValueError as error:
                found.append(str(error))
    for number in range(num_patterns):
        maps[0][f"block_{number}/.*/(kernel|bias)"] = (None, "model")
    began = time.process_time()
    for number in range(50):
        assert maps[0][f"block_{number}/query/kernel"].axes == (None, "model")
    return {"said": said, "seconds": time.process_time() - began}
