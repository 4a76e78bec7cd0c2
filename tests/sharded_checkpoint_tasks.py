"""Trainings of models whose variables several ranks divide, which are written to files and read from them."""

import contextlib
from pathlib import Path
from unittest import mock

import keras
import numpy as np

from tests.cases import rows
from tests.checkpoint_tasks import NUM_ROWS, Stop
from tests.stock_callback_tasks import own_folder

WIDE = {
    "up/kernel": (None, "model"),
    "up/bias": ("model",),
    "norm/(gamma|beta|moving_.*)": ("model",),
    "down/kernel": ("model", None),
}
# Other dims, other variables, and one that ranks with other rows divide.
OTHER = {
    "pre/kernel": (None, "model"),
    "up/kernel": ("batch", None),
    "up/bias": ("batch",),
    "down/kernel": (None, "model"),
}
LAYOUTS = {"wide": WIDE, "other": OTHER}
PARTIAL = "gradient_accumulator"
OWN_STATISTICS = {"sync_batch_norm": False}  # so that ranks with other rows have other moving statistics, too


def scope(mesh: str | None, layout: str = "wide"):
    """What a script does before it builds its model.

    Args:
        mesh: "2x2" and the like, or "data", or None for neither; "data zero 1" has that stage, "replicas" has two
            replicas of the third.
        layout: of variables over a mesh.
    """
    if mesh is None:
        return contextlib.nullcontext()
    import keras_par as kp

    if mesh == "replicas":
        return kp.DataParallel(zero=3, zero_min_kb=0, zero_ranks=2, **OWN_STATISTICS).scope()
    if mesh.startswith("data"):
        stage = int(mesh.removeprefix("data").removeprefix(" zero") or 0)
        return kp.DataParallel(zero=stage, zero_min_kb=0, **OWN_STATISTICS).scope()
    device_mesh = keras.distribution.DeviceMesh(tuple(map(int, mesh.split("x"))), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(device_mesh)
    for pattern, axes in LAYOUTS[layout].items():
        layout_map[f".*{pattern}"] = axes
    strategy = kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch", **OWN_STATISTICS)
    strategy.optional_patterns = tuple(f".*{pattern}" for pattern in LAYOUTS[layout] if "norm" in pattern)
    return strategy.scope()


def model(every_state: bool = False) -> keras.Model:
    """One that every mesh trains alike; with `every_state` one with seeds, own moving statistics and averages too."""
    own = [keras.layers.BatchNormalization(name="norm"), keras.layers.Dropout(0.3)] if every_state else []
    averaged = {"use_ema": True, "ema_overwrite_frequency": 4} if every_state else {}
    result = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16, "tanh", name="pre"),
            keras.layers.Dense(32, "relu", name="up"),
            *own,
            keras.layers.Dense(16, name="down"),
            keras.layers.Dense(3, name="head"),
        ]
    )
    result.compile(
        keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3, **averaged),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return result


def state(trained: keras.Model) -> dict[str, list]:
    """All ranks call it, because whole values are gathered."""
    slots = trained.optimizer.variables
    return {
        "weights": trained.get_weights(),
        "slots": [np.array(variable.value) for variable in slots if not variable.name.endswith(PARTIAL)],
        "accumulated": [np.array(variable.value) for variable in slots if variable.name.endswith(PARTIAL)],
        "statistics": [np.array(v.value) for v in trained.non_trainable_variables if "moving" in v.name],
    }


def fit(
    folder: str | None,
    mesh: str | None,
    layout: str = "wide",
    stop=None,
    epochs: int = 4,
    every_state: bool = False,
    callbacks: tuple = (),
    **options,
) -> dict:
    """Trains from the newest checkpoint in `folder` on, as a fresh script would, to the end or to `stop`."""
    import keras_par as kp

    keras.utils.set_random_seed(21)
    x, y = rows(NUM_ROWS)
    given = list(callbacks)
    if folder is not None:
        resume, checkpoint = kp.callbacks.Resume(folder), kp.callbacks.RankCheckpoint(folder, **{"every": 1, **options})
        given += [resume, checkpoint]
    if stop is not None:
        given.append(Stop(*stop))
    with scope(mesh, layout):
        trained = model(every_state)
        try:
            trained.fit(x, y, batch_size=16, epochs=epochs, verbose=0, callbacks=given)
        except RuntimeError as error:
            assert stop is not None and str(error) == "stopped", error
        else:
            assert stop is None, "it should have stopped"
    return {
        **state(trained),
        "logs": getattr(trained, "history", None) and trained.history.history,
        "from": folder and resume.resumed_from,
        "divided": sum(hasattr(each, "local") for each in (*trained.variables, *trained.optimizer.variables)),
    }


def load(path: str, mesh: str | None, layout: str = "wide", every_state: bool = False) -> dict:
    """What kp.load_checkpoint gives a model, and how training goes on with it."""
    import keras_par as kp

    keras.utils.set_random_seed(99)
    with scope(mesh, layout):
        trained = model(every_state)
        manifest = kp.load_checkpoint(path, trained)
    return {**state(trained), "name": manifest.name, "mesh": vars(manifest.mesh)}


def train(trained: keras.Model, **options) -> None:
    """In the order of the rows, so that every epoch is like the others."""
    x, y = rows(NUM_ROWS)
    trained.fit(x, y, batch_size=16, verbose=0, shuffle=False, **options)


def save(folder: str, mesh: str, layout: str = "wide") -> dict:
    """Trains and saves by all ways, each rank into a folder of its own, and trains on."""
    import keras_par as kp

    keras.utils.set_random_seed(21)
    with scope(mesh, layout):
        trained = model()
    train(trained, epochs=1)
    found = {**state(trained), "refused": []}
    with own_folder(folder, kp.rank()):
        trained.save("model.keras")
        trained.save_weights("model.weights.h5")
        keras.saving.save_model(trained, "direct.keras")
        trained.export("exported", verbose=False)
        with mock.patch("builtins.input", return_value="n") as asked:
            keras.saving.save_model(trained, "model.keras", overwrite=False)
            keras.saving.save_weights(trained, "model.weights.h5", overwrite=False)
        found["asked"] = asked.call_count
        for path in ("nowhere/model.keras", "model.unknown"):
            try:
                trained.save(path)
            except Exception as error:
                found["refused"].append((type(error).__name__, str(error)))
        try:
            if kp.rank() == 0:
                trained.save("alone.keras")
            else:
                train(trained, epochs=1)
        except ValueError as error:
            found["alone"] = str(error)
        train(trained, epochs=2, initial_epoch=1)
    return {**found, "after": trained.get_weights()}


def load_file(path: str, epochs: int = 1) -> dict:
    """What an ordinary file holds, and what training goes on to from it, in one process without a strategy."""
    trained = keras.saving.load_model(path)
    found = state(trained)
    train(trained, epochs=epochs)
    return {**found, "after": trained.get_weights()}


def fit_and_save(path: str) -> dict:
    """An ordinary file, written in one process without a strategy, and what training goes on to."""
    keras.utils.set_random_seed(21)
    trained = model()
    train(trained, epochs=1)
    trained.save(path)
    trained.save_weights(path.replace(".keras", ".weights.h5"))
    found = state(trained)
    train(trained, epochs=1)
    return {**found, "after": trained.get_weights()}


def load_into(path: str, mesh: str, layout: str = "wide") -> dict:
    """The same file in a model that is divided; its weights also in one that was built before."""
    keras.utils.set_random_seed(99)
    with scope(mesh, layout):
        built = model()
        trained = keras.saving.load_model(path)
    built.optimizer.build(built.trainable_variables)
    built.load_weights(path.replace(".keras", ".weights.h5"))
    found = {**state(trained), "loaded": built.get_weights()}
    found["divided"] = sum(hasattr(variable, "local") for variable in trained.optimizer.variables)
    train(trained, epochs=1)
    train(built, epochs=1)
    return {**found, "after": trained.get_weights(), "after weights": built.get_weights()}


class CheckpointOfUsers(keras.callbacks.ModelCheckpoint):
    """A class of a user's own."""


def fit_with_backup(folder: str, mesh: str | None, layout: str = "wide", stop=None, epochs: int = 2) -> dict:
    """Trains with Keras's own callbacks, each rank in a folder of its own, from the backup if there is one."""
    rank = 0
    if mesh is not None:
        import keras_par as kp

        rank = kp.rank()
    keras.utils.set_random_seed(21)
    with own_folder(folder, rank), scope(mesh, layout):
        trained = model()
        callbacks = [
            keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False),
            keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True),
            CheckpointOfUsers("best.keras", save_best_only=True, monitor="loss"),
        ]
        if stop is not None:
            callbacks.append(Stop(*stop))
        try:
            train(trained, epochs=epochs, callbacks=callbacks)
        except RuntimeError as error:
            assert stop is not None and str(error) == "stopped", error
    return {**state(trained), "files": sorted(path.name for path in (Path(folder) / f"rank{rank}").iterdir())}


def checkpoint_on_rank_0(mesh: str, folder: str) -> None:
    """Trains with a ModelCheckpoint that only rank 0 has."""
    import keras_par as kp

    with scope(mesh):
        trained = model()
    callbacks = [keras.callbacks.ModelCheckpoint(f"{folder}/model.keras")] if kp.rank() == 0 else []
    train(trained, epochs=1, callbacks=callbacks)


def big_model(mesh: str | None, layout: str) -> keras.Model:
    """Two kernels of 16 MB each."""
    keras.utils.set_random_seed(21)
    with scope(mesh, layout):
        trained = keras.Sequential(
            [
                keras.layers.Input((8,)),
                keras.layers.Dense(1024, name="pre"),
                keras.layers.Dense(4096, name="up"),
                keras.layers.Dense(1024, name="down"),
            ]
        )
        trained.compile("sgd", "mse")
    return trained


def write_big(folder: str, mesh: str | None, layout: str = "wide") -> list[float]:
    """Sums of the weights after a step and a checkpoint."""
    import keras_par as kp

    trained = big_model(mesh, layout)
    x, y = np.ones([2, 8], "float32"), np.ones([2, 1024], "float32")
    trained.fit(x, y, batch_size=2, verbose=0, callbacks=[kp.callbacks.RankCheckpoint(folder)])
    return sums(trained)


def read_big(folder: str, mesh: str | None, layout: str = "wide") -> dict:
    """The most memory that NumPy had at a time while the checkpoint was read, and sums of the weights."""
    import tracemalloc

    import keras_par as kp

    trained = big_model(mesh, layout)
    tracemalloc.start()
    try:
        kp.load_checkpoint(folder, trained)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"peak": peak, "sums": sums(trained), "size": max(int(np.prod(v.shape)) * 4 for v in trained.variables)}


def sums(trained: keras.Model) -> list[float]:
    return [float(np.abs(weight).sum(dtype="float64")) for weight in trained.get_weights()]
