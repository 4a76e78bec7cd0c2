"""What the ranks of a pool do for the tests of model parallelism."""

import contextlib
import warnings

import keras
import numpy as np

from tests import training_cases
from tests.layout_cases import LAYOUT_CASES
from tests.training_cases import TRAININGS

NUM_EPOCHS = 2  # of 5 steps, the last of which has 11 rows instead of 16

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.5),
}


def train_plain(name: str, optimizer: str) -> dict:
    """Trains a case of a layout by Keras as it is, in one process."""
    case = LAYOUT_CASES[name]
    return fit(case.model, OPTIMIZERS[optimizer], case.data(), from_logits="softmax" not in name)


def train_divided(name: str, optimizer: str, mesh: tuple[int, ...]) -> dict:
    """Trains a case of a layout on a mesh."""
    case = LAYOUT_CASES[name]
    with dividing(case.layout, mesh) as about:
        return {**train_plain(name, optimizer), **about}


def train_plain_so(name: str) -> dict:
    """Trains in a way of the table by Keras as it is, in one process."""
    training = TRAININGS[name]
    keras.config.set_dtype_policy(training.policy)
    return fit(
        lambda: training_cases.network(**training.model), training.optimizer, training_cases.data(), **training.compile
    )


def train_divided_so(name: str, mesh: tuple[int, ...]) -> dict:
    """Trains in a way of the table on a mesh."""
    with dividing(training_cases.LAYOUT, mesh) as about, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train_plain_so(name)
    said = [str(warning.message) for warning in caught if str(warning.message).startswith("keras-par: ")]
    return {**result, **about, "warnings": said}


def train_on_three_axes(mesh: tuple[int, ...] | None) -> dict:
    """Trains a transformer's block whose kernels are divided along two dims, on a mesh of three axes or without one."""
    layout = {
        ".*up/kernel": ("rows", "columns"),
        ".*up/bias": ("columns",),
        ".*down/kernel": ("columns", "rows"),
        ".*(query|key|value)/kernel": ("rows", "columns", None),
        ".*attention_output/kernel": ("columns", None, "rows"),
        ".*embeddings": ("rows", "columns"),
    }
    scope = contextlib.nullcontext({}) if mesh is None else dividing(layout, mesh, ("batch", "rows", "columns"))
    with scope as about:
        return {
            **fit(LAYOUT_CASES["attention-block"].model, OPTIMIZERS["adam"], LAYOUT_CASES["attention-block"].data()),
            **about,
        }


def train_by_two_strategies(distributed: bool) -> dict:
    """Trains two models in turns, by strategies on one mesh whose batch axes are not the same.

    Returns the models' weights and, on ranks, which model's kernel has gradients that are summed already.
    """
    keras.utils.set_random_seed(3)
    rows = np.random.default_rng(1).normal(size=(24, 6)).astype("float32")
    scopes = [contextlib.nullcontext] * 2
    if distributed:
        import keras_par as kp

        mesh = keras.distribution.DeviceMesh((1, kp.size()), ("first", "second"))
        scopes = []
        for batch_axis in ("first", "second"):
            layout_map = keras.distribution.LayoutMap(mesh)
            layout_map[".*hidden/kernel"] = (None, "second")
            scopes.append(kp.ModelParallel(layout_map=layout_map, batch_dim_name=batch_axis).scope)
    models = []
    for scope in scopes:
        with scope():
            layers = [keras.Input((6,)), keras.layers.Dense(8, "tanh", name="hidden"), keras.layers.Dense(6)]
            models.append(keras.Sequential(layers))
            models[-1].compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    for _ in range(2):
        for scope, model in zip(scopes, models, strict=True):
            with scope():
                model.fit(rows, np.tanh(rows), batch_size=8, epochs=2, verbose=0, shuffle=False)
    weights = [model.get_weights() for model in models]
    if not distributed:
        return {"weights": weights}
    from keras_par.sharding.variable_views import is_summed_backward

    return {"weights": weights, "summed": [is_summed_backward(model.layers[0].kernel) for model in models]}


def make_slots(axes: dict[str, tuple]) -> dict:
    """The shapes of a divided kernel and of a slot for it, where its placement is given these axes."""
    from dataclasses import replace

    from keras_par.sharding.variable_views import PLACEMENT, placement_of

    with dividing({".*kernel": (None, "model")}, (1, 2)):
        kernel = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)]).layers[0].kernel
        before = placement_of(kernel)
        setattr(kernel, PLACEMENT, replace(before, **axes))
        slot = keras.optimizers.SGD().add_variable_from_reference(kernel, name="slot")
    return {
        "alike": before.stored == before.gradient == before.slots,
        "kernel": kernel.local_shape,
        "slot": tuple(getattr(slot, "local_shape", slot.shape)),
        "whole": (tuple(kernel.shape), tuple(slot.shape)),
    }


@contextlib.contextmanager
def dividing(layout: dict[str, tuple], mesh: tuple[int, ...], names: tuple[str, ...] = ("batch", "model")):
    """A strategy's scope, in which collectives are counted; gives what is known about the rank."""
    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator

    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, names))
    for pattern, axes in layout.items():
        layout_map[pattern] = axes
    strategy = kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
    counting = CountedCommunicator(world.current())
    before = world.replace(counting)
    try:
        with strategy.scope():
            yield {
                "rank": kp.rank(),
                "size": kp.size(),
                "sent": counting.calls,
                "axes": divided_axes(layout, mesh, names),
            }
    finally:
        world.replace(before)


def divided_axes(layout: dict[str, tuple], mesh: tuple[int, ...], names: tuple[str, ...]) -> set[str]:
    """The axes of several ranks that a layout of variables names."""
    sizes = dict(zip(names, mesh, strict=True))
    variables = [axes for pattern, axes in layout.items() if not pattern.endswith("/output")]
    return {axis for axes in variables for axis in axes if axis is not None and sizes[axis] > 1}


def fit(build, optimizer, data, from_logits: bool = True, **options) -> dict:
    """Trains 10 steps, then what came of it and how much of it this rank holds."""
    keras.utils.set_random_seed(11)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    model.compile(optimizer(), loss, metrics=["accuracy"], **options)
    x, y = data
    history = model.fit(x, y, batch_size=16, epochs=NUM_EPOCHS, verbose=0)
    slots = [variable for variable in model.optimizer.variables if len(variable.shape)]
    held = [getattr(variable, "local_shape", tuple(variable.shape)) for variable in (*model.weights, *slots)]
    return {
        "logs": history.history,
        "weights": model.get_weights(),
        "slots": [np.asarray(slot) for slot in slots if not slot.name.endswith("gradient_accumulator")],
        "predictions": model.predict(x[:13], batch_size=8, verbose=0),
        "evaluated": model.evaluate(x, y, batch_size=16, verbose=0),
        "held": sum(int(np.prod(shape)) for shape in held),
        "parameters": sum(int(np.prod(variable.shape)) for variable in (*model.weights, *slots)),
    }
