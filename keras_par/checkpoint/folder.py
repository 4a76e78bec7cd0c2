"""The checkpoints in a folder: which are complete, which is the newest that is whole, and how one is removed."""

import itertools
import re
import warnings
from collections.abc import Collection, Iterable
from pathlib import Path

from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import SUFFIX, TEMPORARY
from keras_par.checkpoint.manifest import FROZEN, NAME, CheckpointError, Manifest
from keras_par.checkpoint.reader import Reader

RANK_FOLDER = re.compile(r"rank\.(\d{1,6})")


def rank_folder(folder: Path, rank: int) -> Path:
    return folder / f"rank.{rank}"


def ranks_without_process(folder: Path, num_ranks: int) -> list[int]:
    """Ranks that have a folder from when the job had more of them."""
    found = (RANK_FOLDER.fullmatch(path.name) for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(int(match[1]) for match in found if match and int(match[1]) >= num_ranks)


def complete(folder: Path, prefix: str, unfit: list[CheckpointError] | None = None) -> list[Manifest]:
    """The complete checkpoints of a prefix, oldest first.

    Manifests that cannot be read are left out with a warning; why they cannot is added to `unfit`.
    """
    found: list[Manifest] = []
    unfit = [] if unfit is None else unfit
    for path in folder.glob("*.json"):
        match = NAME.fullmatch(path.stem)
        if match and match["prefix"] == prefix:
            try:
                found.append(manifests.read(path))
            except CheckpointError as error:
                warnings.warn(str(error), stacklevel=2)
                unfit.append(error)
    return sorted(found, key=lambda manifest: manifest.serial)


def newest_whole(folder: Path, prefix: str) -> Reader | None:
    """The newest checkpoint of a prefix that can be read; warns of those that cannot.

    Raises:
        CheckpointError: there are checkpoints, but none can be read.
    """
    unfit: list[CheckpointError] = []
    for manifest in reversed(complete(folder, prefix, unfit)):
        try:
            return Reader(folder, manifest)
        except CheckpointError as error:
            warnings.warn(str(error), stacklevel=2)
            unfit.append(error)
    if unfit:
        raise CheckpointError(f"keras-par: none of the checkpoints '{prefix}-*' in '{folder}' can be read: {unfit[-1]}")
    return None


def free_name(folder: Path, name: str) -> str:
    """`name`, or with the first number behind it for which there is no checkpoint, nor frozen arrays of one, yet."""
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    frozen = {path.name.removesuffix(FROZEN + SUFFIX) for path in folder.glob(f"rank.*/*{FROZEN}{SUFFIX}")}
    return next(each for each in names if each not in frozen and not manifests.path_of(folder, each).exists())


def prune(folder: Path, prefix: str, keep: int) -> None:
    """Deletes the checkpoints of a prefix but for the newest, and the frozen arrays that none of these has.

    Frozen arrays stay while there is a manifest that cannot be read, which may name them.
    """
    unfit: list[CheckpointError] = []
    found = complete(folder, prefix, unfit)
    for old in found[:-keep]:
        remove(folder, old)
    used = frozen_files(found[-keep:])
    for old in [] if unfit else found[:-keep]:
        for rank, file in enumerate(old.frozen):
            if file is not None and file.path not in used and not rank_folder(folder, rank).is_symlink():
                (folder / file.path).unlink(missing_ok=True)


def frozen_files(found: Iterable[Manifest]) -> set[str]:
    """The paths of the files with frozen arrays of some checkpoints."""
    return {file.path for manifest in found for file in manifest.frozen if file is not None}


def remove(folder: Path, manifest: Manifest) -> None:
    """Deletes a checkpoint, its manifest first, so that no moment shows half of one. Its frozen arrays stay."""
    manifests.path_of(folder, manifest.name).unlink(missing_ok=True)
    for rank in range(manifest.world_size):
        if not rank_folder(folder, rank).is_symlink():
            (folder / manifests.file_of(manifest.name, rank)).unlink(missing_ok=True)


def remove_leftovers(
    folder: Path, prefix: str, rank: int, names: Collection[str], frozen: Collection[str] | None
) -> None:
    """Deletes a rank's files of checkpoints that a killed job did not complete.

    Args:
        folder: of the checkpoints.
        prefix: of their names.
        rank: whose files; rank 0's include manifests.
        names: of the checkpoints that have a manifest, whether it can be read or not.
        frozen: the paths of the files with frozen arrays that these name; None if a manifest cannot be read.
    """
    for path in rank_folder(folder, rank).iterdir():
        stem = path.name.removesuffix(TEMPORARY).removesuffix(SUFFIX)
        match = NAME.fullmatch(stem.removesuffix(FROZEN))
        is_ours = match and match["prefix"] == prefix and path.name != stem and (path.is_symlink() or not path.is_dir())
        if stem.endswith(FROZEN):
            is_needed = frozen is None or path.relative_to(folder).as_posix() in frozen
        else:
            is_needed = stem in names
        if is_ours and (path.name.endswith(TEMPORARY) or not is_needed):
            path.unlink(missing_ok=True)
    if rank == 0:
        for path in folder.glob(f"*.json{TEMPORARY}"):
            match = NAME.fullmatch(path.name.removesuffix(f".json{TEMPORARY}"))
            if match and match["prefix"] == prefix:
                path.unlink(missing_ok=True)
