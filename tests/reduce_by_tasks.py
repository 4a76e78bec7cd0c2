"""What the ranks of a pool do for the tests of the way that sums take."""

import warnings

import keras
import numpy as np
from keras import layers


def build(classes: int = 3) -> keras.Model:
    model = keras.Sequential([layers.Input((5,)), layers.Dense(8, "tanh"), layers.Dense(classes)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def data() -> dict:
    random = np.random.default_rng(1)
    return {"x": random.normal(size=(24, 5)), "y": random.normal(size=(24, 3)), "batch_size": 8, "shuffle": False}


def weights(model: keras.Model) -> list:
    return [np.asarray(each) for each in model.trainable_variables]


def alone(epochs: int) -> list:
    """The weights that one process ends with."""
    keras.utils.set_random_seed(3)
    model = build()
    model.fit(**data(), epochs=epochs, verbose=0)
    return weights(model)


def strategy_of(reduce_by: str, mesh: tuple[int, ...] | None = None, compression: str | None = None):
    """A strategy whose sums go this way."""
    import keras_par as kp

    if mesh is None:
        return kp.DataParallel(reduce_by=reduce_by, compression=compression)
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    layout_map[".*dense.*kernel"] = (None, "model")
    return kp.ModelParallel(layout_map=layout_map, reduce_by=reduce_by)


def train(ways: list[str], epochs: int, mesh: tuple[int, ...] | None = None, compression: str | None = None) -> dict:
    """Models that sum in different ways, trained in turns; the way of each collective, and their weights."""
    import keras_par as kp

    models = []
    for reduce_by in ways:
        keras.utils.set_random_seed(3)
        with strategy_of(reduce_by, mesh, compression).scope():
            models.append(build(classes=3 if mesh is None else 4))
    given = data()
    if mesh is not None:
        given["y"] = np.zeros((24, 4))
    for _ in range(epochs):
        for model in models:
            model.fit(**given, verbose=0)
    described = [kp.describe(model) for model in models]
    return {
        "size": kp.size(),
        "routes": [[call.route for call in each.collectives["train_step"]] for each in described],
        "texts": [str(each) for each in described],
        "weights": [weights(model) for model in models],
    }


def misuse(which: str):
    """Raises."""
    import keras_par as kp

    if which == "unknown":
        kp.DataParallel(reduce_by="mpi")
    elif which == "impossible":
        kp.DataParallel(reduce_by="shared_memory")
    elif which == "different":
        with kp.DataParallel(reduce_by="auto" if kp.rank() == 0 else "horovod").scope():
            model = build()
        model.fit(**data(), verbose=0)


def warned() -> list[str]:
    """The sentences of warnings where steps run eagerly, which Horovod sums."""
    import keras_par as kp

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with kp.DataParallel(reduce_by="shared_memory").scope():
            model = build()
            model.compile("sgd", "mse", run_eagerly=True)
        model.fit(**data(), verbose=0)
    return [str(each.message) for each in found if str(each.message).startswith("keras-par")]
