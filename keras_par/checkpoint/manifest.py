"""The manifest: the small file whose presence makes a checkpoint complete, and which says what must be in it.

A checkpoint `CKP-3_5` in a folder is `CKP-3_5.json`, the manifest, and a file `rank.<r>/CKP-3_5.npz` for each rank.
The manifest is written last and removed first.
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from keras_par.checkpoint.files import whole
from keras_par.checkpoint.grid import Grid, in_a_row

FORMAT = "keras-par checkpoint"
VERSION = 3  # 1 had no mesh: all ranks had other rows and held all variables; 2 knew nothing of callbacks


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with one sentence that says which and why."""


@dataclasses.dataclass(frozen=True)
class File:
    """One rank's file: its path below the checkpoints' folder, its size, and the SHA-256 of its bytes."""

    path: str
    num_bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable in the files.

    Args:
        name: as all processes call it.
        shape: of the whole variable.
        dtype: of its elements.
        across_ranks: how the values of ranks with other rows belong together, see `seam.models.state`.
        axes: for each dim the axis of the mesh that divides it, or None; empty if none is divided.
    """

    name: str
    shape: list[int]
    dtype: str
    across_ranks: str
    axes: list[str | None] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds.

    Args:
        name: `<prefix>-<epoch>_<step>`, counted from 1: the epoch and the step that were done last.
        serial: grows with each checkpoint in a folder.
        mesh: of the ranks that wrote it; one axis in data parallel.
        epoch: complete epochs.
        step: steps done of the epoch after these.
        position: in the data, as `seam.feed.position.Position` has it; None if it was not known.
        seed: TensorFlow's global seed.
        monitored: name and value of the metric that chose this checkpoint as the best, None if none did.
        variables: all of the model, the optimizers and the metrics.
        versions: of the packages that wrote it.
        files: one for each rank, in rank order.
        stopped: True if a callback had ended the training by then; versions before 3 did not say.
    """

    name: str
    serial: int
    mesh: Grid
    epoch: int
    step: int
    position: list | None
    seed: int
    monitored: list | None
    variables: list[Variable]
    versions: dict[str, str]
    files: list[File]
    stopped: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return len(self.mesh.ranks)


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def write(folder: Path, manifest: Manifest) -> None:
    """Makes the checkpoint complete, all at once."""
    body = dataclasses.asdict(manifest)
    document = {"format": FORMAT, "version": VERSION, "checksum": checksum(body), "checkpoint": body}
    with whole(path_of(folder, manifest.name)) as file:
        file.write(json.dumps(document, indent=1).encode())


def read(path: Path) -> Manifest:
    """The manifest in the file `path`.

    Raises:
        CheckpointError: it is missing, damaged, of something else, or of a newer keras-par.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"keras-par: there is no checkpoint '{path}': correct the path.") from None
    except (OSError, ValueError) as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"keras-par: '{path}' is no checkpoint of keras-par, which would name itself '{FORMAT}'.")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise CheckpointError(
            f"keras-par: checkpoint '{path}' has format {version}, but this version of keras-par reads up to "
            f"{VERSION}: update keras-par."
        )
    body = document.get("checkpoint")
    if not isinstance(body, dict) or document.get("checksum") != checksum(body):
        raise damaged(path, "its manifest does not fit its checksum")
    if version == 1:
        size = body.pop("world_size")
        if body.pop("layout") != "replicated":
            raise damaged(path, "its layout is unknown")
        body["mesh"] = dataclasses.asdict(in_a_row(size))
    mesh = body["mesh"]
    shape, names, ranks = (tuple(mesh[key]) for key in ("shape", "axis_names", "ranks"))
    grid = Grid(shape, names, ranks, mesh["batch_axis"], mesh.get("replica_axis"))
    variables, files = [Variable(**each) for each in body["variables"]], [File(**each) for each in body["files"]]
    return Manifest(**{**body, "mesh": grid, "variables": variables, "files": files})


def damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"keras-par: checkpoint '{path}' is damaged, {why}: use an older one, or restore it from a backup."
    )


def checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
