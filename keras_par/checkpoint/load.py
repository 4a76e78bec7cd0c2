"""Reads a checkpoint into a model, in a job of any size or without one."""

from pathlib import Path

import keras

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint import snapshot
from keras_par.checkpoint.files import Arrays
from keras_par.checkpoint.manifest import CheckpointError, Manifest
from keras_par.seam.binding import optimizers_of


def load_checkpoint(path: str | Path, model: keras.Model) -> Manifest:
    """Gives a model the weights of a checkpoint, and its optimizer's state if it is compiled. Needs no Horovod.

    Every process that calls it reads the files itself; no collective is used.

    Args:
        path: a folder of checkpoints, of which the newest whole one is taken, or one checkpoint in it, by its
            manifest ("ckpt/CKP-3_5.json") or without the suffix.
        model: built as it was when the checkpoint was written.

    Returns:
        What the checkpoint says about itself, as `epoch` and `step`.

    Raises:
        ValueError: there is no such checkpoint, it is damaged, not keras-par's or of a newer version, or it does not
            fit the model. No file is changed.
    """
    manifest, files = find(Path(path))
    if not model.built:
        raise CheckpointError(
            f"keras-par: model '{model.name}' is not built, so that checkpoint '{manifest.name}' has nothing to fill: "
            "give it an Input, or call it once."
        )
    snapshot.restore(model, "model", files, 0, 1, manifest.variables)
    if optimizers_of(model):
        build_optimizers(model)
        snapshot.restore(model, "optimizer", files, 0, 1, manifest.variables)
    return manifest


def find(path: Path) -> tuple[Manifest, list[Arrays]]:
    """The checkpoint that `path` means, and its arrays."""
    if path.is_dir():
        prefixes = {match["prefix"] for file in path.glob("*.json") if (match := folders.NAME.fullmatch(file.stem))}
        if len(prefixes) > 1:
            raise CheckpointError(
                f"keras-par: '{path}' holds checkpoints of several prefixes ({', '.join(sorted(prefixes))}): "
                "name one of them, as '<prefix>-<epoch>_<step>.json'."
            )
        found = folders.newest_whole(path, prefixes.pop()) if prefixes else None
        if found is None:
            raise CheckpointError(f"keras-par: there is no checkpoint in '{path}'.")
        return found
    file = path if path.suffix == ".json" else path.with_name(f"{path.name}.json")
    manifest = manifests.read(file)
    return manifest, folders.read_files(file.parent, manifest)


def build_optimizers(model: keras.Model) -> None:
    """Creates the state of the model's own optimizer if it is not there yet."""
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.Optimizer) and not optimizer.built:
        optimizer.build(model.trainable_variables)
