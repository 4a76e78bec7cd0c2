"""Models that ranks save as a script of one process does, all to one path at once, and load right after."""

import contextlib
import io
import os
import warnings
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

WIDTH = 200  # wide enough that writing a file takes longer than the ranks are apart


def network() -> keras.Model:
    """With state that ranks have of their own while they train: moving statistics, and the seed of dropout."""
    model = keras.Sequential(
        [
            keras.layers.Input((WIDTH,)),
            keras.layers.Dense(WIDTH, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(WIDTH),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    return model


def load_keras(fresh, path):
    return keras.saving.load_model(path)


def load_weights(fresh, path):
    fresh.load_weights(path)
    return fresh


def archive(model, path):
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", model.call, input_signature=[tf.TensorSpec([None, WIDTH], tf.float32)])
    archive.write_out(path, verbose=False)


# The file's name, what saves it, what loads it.
KINDS = {
    "keras": ("m.keras", lambda model, path: model.save(path), load_weights),
    "save_model": ("m.keras", lambda model, path: keras.saving.save_model(model, Path(path)), load_keras),
    "folder": ("m", lambda model, path: model.save(path, zipped=False), load_keras),
    "weights": ("m.weights.h5", lambda model, path: model.save_weights(path), load_weights),
    "save_weights": ("m.weights.h5", lambda model, path: keras.saving.save_weights(model, path), load_weights),
    "sharded": ("m.weights.json", lambda model, path: model.save_weights(path, max_shard_size=2e-4), load_weights),
    "h5": ("m.h5", lambda model, path: model.save(path), lambda _, path: keras.saving.load_model(path, compile=False)),
    "export": ("m", lambda model, path: model.export(path, verbose=False), lambda _, path: tf.saved_model.load(path)),
    "archive": ("m", archive, lambda _, path: tf.saved_model.load(path)),
}


def strategy(mesh: tuple[int, ...], divided: str | None = None):
    """Data parallel, or model parallel on a mesh of which axis "model" divides the kernels of that name, or nothing."""
    import keras_par as kp

    if not mesh:
        return kp.DataParallel()
    devices = keras.distribution.DeviceMesh(mesh, ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(devices)
    if divided:
        layout_map[divided] = (None, "model")
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch")


def save_and_load(
    folder: str, times: dict[str, int], only_rank: int | None = None, own_folders: bool = False, mesh: tuple = ()
) -> dict:
    """Trains, saves to one relative path of each kind and loads what is there, again and again.

    Args:
        folder: in which the ranks work, in a folder for each kind.
        times: how often by each of `KINDS`.
        only_rank: which saves, None for all.
        own_folders: True gives each rank a folder of its own to work in.
        mesh: of model parallel, empty for data parallel.

    Returns:
        For each kind, how often what was loaded was not what was saved, the errors, if files were new ones each time,
        and what is in its folder at the end.
    """
    import keras_par as kp

    x = np.random.default_rng(1).standard_normal([32, WIDTH]).astype("float32")
    keras.utils.set_random_seed(3)
    with strategy(mesh).scope():
        model = network()
    model.fit(x, x, batch_size=16, verbose=0)
    fresh = keras.models.clone_model(model)
    found = {}
    for kind, count in times.items():
        name, save, load = KINDS[kind]
        work = Path(folder) / kind / (f"rank{kp.rank()}" if own_folders else "shared")
        work.mkdir(exist_ok=True, parents=True)
        others, errors, rewritten = 0, [], []
        with contextlib.chdir(work), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(count):
                model.set_weights([weight + 0.01 for weight in model.get_weights()])
                wanted = model.get_weights()
                kp.barrier()
                try:
                    if only_rank in (None, kp.rank()):
                        with old_file(Path(name)) as old:
                            save(model, name)
                            rewritten.append(old is None or not os.path.samestat(os.fstat(old), os.stat(name)))
                        others += not same(load(fresh, name), wanted, x, model)
                except Exception as error:
                    errors.append(f"{type(error).__name__}: {error}")
            kp.barrier()
            files = sorted(str(path) for path in Path().rglob("*"))
            kp.barrier()
        found[kind] = {"others": others, "errors": errors, "files": files, "rewritten": rewritten}
    return found


@contextlib.contextmanager
def old_file(path: Path):
    """A file that is there, or None; it is open, so that no file that comes after it has its inode."""
    if not path.is_file():
        yield None
        return
    with path.open("rb") as file:
        yield file.fileno()


def same(loaded, wanted: list, x, model: keras.Model) -> bool:
    """True if a loaded model or program has these weights, bit by bit, or predicts what the model does."""
    if isinstance(loaded, keras.Model):
        return all(np.array_equal(a, b) for a, b in zip(loaded.get_weights(), wanted, strict=True))
    return np.allclose(loaded.serve(x), model(x), rtol=1e-5, atol=1e-5)


def new_model() -> keras.Model:
    """Bound to data parallel, of equal weights on all ranks."""
    keras.utils.set_random_seed(3)
    with strategy(()).scope():
        return network()


def save_to(path: str, kind: str = "keras") -> None:
    _, save, _ = KINDS[kind]
    save(new_model(), path)


def save_where_something_is(folder: str) -> dict:
    """Saves into a folder that has a file of the user's, over a file of a mode of its own, by a link, to a new one."""
    import keras_par as kp

    model, work = new_model(), Path(folder)
    if kp.rank() == 0:
        (work / "exported/variables").mkdir(parents=True)
        (work / "exported/mine.txt").write_text("mine")
        (work / "m.keras").write_text("another")
        (work / "m.keras").chmod(0o640)
        (work / "link.keras").symlink_to(work / "m.keras")
    kp.barrier()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        model.export(str(work / "exported"), verbose=True)
        model.export(str(work / "new/exported"), verbose=False)
    model.save(work / "link.keras")
    kp.describe(model).save(work / "new/described.txt")
    kp.barrier()
    return {
        "kept": (work / "exported/mine.txt").read_text(),
        "mode": (work / "m.keras").stat().st_mode & 0o777,
        "linked": (work / "link.keras").is_symlink() and keras.saving.load_model(work / "m.keras").built,
        "made": hasattr(tf.saved_model.load(str(work / "new/exported")), "serve"),
        "printed": f"Saved artifact at '{work}/exported'." in out.getvalue(),
        "described": "sequential" in (work / "new/described.txt").read_text(),
    }


def save_over_a_file(path: str) -> dict:
    """Saves with `overwrite=False` where there is a file, and says no if it is asked."""
    from unittest import mock

    import keras_par as kp

    model = new_model()
    if kp.rank() == 0:
        Path(path).write_text("another")
    kp.barrier()
    with mock.patch("builtins.input", return_value="n") as asked:
        model.save(path, overwrite=False)
    kp.barrier()
    return {"asked": asked.call_count}


def describe(path: str) -> bool:
    """Writes a description 50 times; True if it could be read each time."""
    import json

    import keras_par as kp

    description = kp.describe(new_model())
    for _ in range(50):
        description.save(path)
        assert json.loads(Path(path).read_text())["model"] == description.model
    return True


def accumulate_and_save(folder: str, num_steps: int) -> dict[str, list[str]]:
    """What is said of saving after some steps, of which two make an update, in several ways."""
    import keras_par as kp

    with kp.DataParallel().scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-2, gradient_accumulation_steps=2), "mse")
    x, y = np.random.default_rng(3).normal(size=(8 * num_steps, 4)), np.ones(8 * num_steps)
    callback = keras.callbacks.ModelCheckpoint(f"{folder}/by_callback.keras")
    ways = {
        "fit": lambda: model.fit(x, y, batch_size=8, verbose=0, callbacks=[callback]),
        "save": lambda: model.save(f"{folder}/m.keras"),
        "save_model": lambda: keras.saving.save_model(model, f"{folder}/n.keras"),
        "save_weights": lambda: model.save_weights(f"{folder}/m.weights.h5"),
        "export": lambda: model.export(f"{folder}/exported", verbose=False),
    }
    said = {}
    for name, act in ways.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            act()
        said[name] = [str(each.message) for each in caught if "accumulated" in str(each.message)]
        kp.barrier()
    return said


def go_back_to_a_file(folder: str, mesh: tuple | None, divided: str | None = None, zero: int = 0) -> list[np.ndarray]:
    """Trains past a file that has gradients which are half accumulated, loads it, and trains on; then the weights.

    Args:
        folder: for the file.
        mesh: of the strategy, as in `strategy`; None for a process without one.
        divided: the kernel that is, as in `strategy`.
        zero: what data parallel divides.
    """
    scope: contextlib.AbstractContextManager = contextlib.nullcontext()
    if mesh is not None:
        import keras_par as kp

        scope = (kp.DataParallel(zero=zero, zero_min_kb=0) if zero else strategy(mesh, divided)).scope()
    draw = np.random.default_rng(3)
    x, y = draw.normal(size=(80, 4)), draw.normal(size=(80, 1))
    keras.utils.set_random_seed(5)
    with scope:
        layers = [keras.layers.Dense(8, "tanh", name="wide", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
        model = keras.Sequential([keras.layers.Input((4,)), *layers])
        model.compile(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3), "mse")
    path = f"{folder}/m.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(x[:32], y[:32], **fit, callbacks=[saving])  # four steps, of which three make an update
    model.fit(x[32:48], y[32:48], **fit)
    model.load_weights(path)
    model.fit(x[16:], y[16:], **fit)
    return model.get_weights()


def on_rank_0(zero: int) -> dict:
    """What functions that rank 0 runs return or raise, of a model that is divided with `zero` of 3."""
    import keras_par as kp

    with kp.DataParallel(zero=zero, zero_min_kb=0).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    rows = np.ones((2, 4))
    before = np.asarray(model.layers[0].kernel)

    def rewrite():
        model.layers[0].kernel.assign(2 * before)
        return [np.asarray(weight).tolist() for weight in model.weights], kp.run_on_rank_0(lambda: "within", model)

    def raised(function, *args):
        try:
            return function(*args)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    found = {
        "rank": kp.rank(),
        "expected": ([(2 * before).tolist(), [0.0] * 3], "within"),
        "returned": kp.run_on_rank_0(rewrite, model),
        "assigned": bool(np.array_equal(model.layers[0].kernel, 2 * before)),
        "failed": [raised(kp.run_on_rank_0, each, model) for each in (lambda: {}["nothing"], before.item)],
        "predicted": raised(kp.run_on_rank_0, lambda: model.predict(rows, verbose=0).shape, model),
        "another": raised(kp.run_on_rank_0, int, model) if kp.rank() == 0 else raised(model.predict, rows),
    }
    with kp.independent():
        found["alone"] = raised(kp.run_on_rank_0, kp.rank, model)
    return found | {"together": model.predict(rows, verbose=0).shape}
