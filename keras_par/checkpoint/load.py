"""Reads a checkpoint into a model, in a job of any size or without one."""

from pathlib import Path

import keras

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint import snapshot
from keras_par.checkpoint.manifest import CheckpointError, Manifest
from keras_par.checkpoint.reader import Reader
from keras_par.keras_patches.models.binding import optimizers_of


def load_checkpoint(path: str | Path, model: keras.Model) -> Manifest:
    """Gives a model the weights of a checkpoint, and its optimizer's state if it is compiled. Needs no Horovod.

    Example:
        ```python
        def build():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
            return model

        with kp.DataParallel().scope():
            model = build()
        model.fit(np.ones((100, 8)), np.ones((100, 1)), callbacks=[kp.callbacks.RankCheckpoint("ckpt")])
        again = build()  # here or in another script, on any number of ranks
        kp.load_checkpoint("ckpt", again).epoch  # -> 1
        ```

    Every process that calls it reads the files itself, one variable at a time, and of a variable that is divided its
    own shard. Which ranks wrote the checkpoint, and how they divided the variables, does not matter.

    Args:
        path: a folder of checkpoints, of which the newest whole one is taken, or one checkpoint in it, by its
            manifest ("ckpt/CKP-3_5.json") or without the suffix.
        model: built as it was when the checkpoint was written.

    Returns:
        What the checkpoint says about itself, such as its `name`, the number of complete epochs (`epoch`), and the
            steps done of the next one (`step`).

    Raises:
        ValueError: there is no such checkpoint, it is damaged, not keras-par's or of a newer version, or it does not
            fit the model. No file is changed.

    Costs no collective.
    """
    reader = find(Path(path))
    manifest = reader.manifest
    if not model.built:
        raise CheckpointError(
            f"keras-par: model '{model.name}' is not built, so that checkpoint '{manifest.name}' has nothing to fill: "
            "give it an Input, or call it once."
        )
    try:
        snapshot.restore(model, "model", reader, 0, 1)
        if optimizers_of(model):
            build_optimizers(model)
            snapshot.restore(model, "optimizer", reader, 0, 1)
    finally:
        reader.close()
    return manifest


def find(path: Path) -> Reader:
    """The checkpoint that `path` means."""
    if path.is_dir():
        prefixes = {match["prefix"] for file in path.glob("*.json") if (match := manifests.NAME.fullmatch(file.stem))}
        if len(prefixes) > 1:
            raise CheckpointError(
                f"keras-par: '{path}' holds checkpoints of several prefixes ({', '.join(sorted(prefixes))}): "
                "name one of them, as '<prefix>-<epoch>_<step>.json'."
            )
        found = folders.newest_whole(path, prefixes.pop()) if prefixes else None
        if found is None:
            raise CheckpointError(f"keras-par: there is no checkpoint in '{path}': give the folder of RankCheckpoint.")
        return found
    file = path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
    return Reader(file.parent, manifests.read(file))


def build_optimizers(model: keras.Model) -> None:
    """Creates the state of the model's own optimizer if it is not there yet."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
        optimizer.build(model.trainable_variables)
