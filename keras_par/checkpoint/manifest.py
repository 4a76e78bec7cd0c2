"""The manifest: the small file whose presence makes a checkpoint complete, and which says what must be in it.

A checkpoint `CKP-3_5` in a folder is `CKP-3_5.json`, the manifest, and a file `rank.<r>/CKP-3_5.safetensors`
for each rank. Arrays that training does not change may be in `rank.<r>/CKP-1_5.frozen.safetensors` of an earlier one.
The manifest is written last and removed first.
"""

import dataclasses
import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

from keras_par.base import generators
from keras_par.base.regular_file import opened
from keras_par.checkpoint import fields
from keras_par.checkpoint.fields import Fields, UnfitError, list_of, one_of, or_none
from keras_par.checkpoint.files import SUFFIX, whole
from keras_par.checkpoint.grid import Grid

FORMAT = "keras-par checkpoint"
MOST_BYTES = 2**27  # of a manifest, enough for 500,000 variables
MOST_DIMS = 64  # of a variable or a mesh
VERSION = 5  # 4 had no frozen arrays, those before had files of NumPy's
READ_VERSIONS = (4, VERSION)
# A checkpoint whose name is taken, as where a run was set back, has a number behind it: none is ever written over.
NAME = re.compile(r"(?P<prefix>.+)-\d+_\d+(\.\d+)?")
FROZEN = ".frozen"  # behind the name of the checkpoint that wrote the file


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
        across_ranks: how the values of ranks with other rows belong together, see `keras_patches.models.model_state`.
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
        position: in the data, as `keras_patches.inputs.input.Position` has it; None if it was not known.
        seed: TensorFlow's global seed.
        monitored: name and value of the metric that chose this checkpoint as the best, None if none did.
        variables: all of the model, the optimizers and the metrics.
        versions: of the packages that wrote it.
        files: one for each rank, in rank order.
        frozen: for each rank the file with arrays that training does not change, which an earlier checkpoint may have
            written, or None; empty if no rank has one. An array that is in both files is the one in `files`.
        stopped: True if a callback had ended the training by then.
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
    frozen: list[File | None] = dataclasses.field(default_factory=list)
    stopped: bool = False

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return len(self.mesh.ranks)

    def files_of(self, rank: int) -> list[File]:
        """The files with a rank's arrays, its own first."""
        frozen = self.frozen[rank] if self.frozen else None
        return [self.files[rank]] if frozen is None else [self.files[rank], frozen]


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def file_of(name: str, rank: int) -> str:
    """The path of a rank's file below the checkpoints' folder."""
    return f"rank.{rank}/{name}{SUFFIX}"


def frozen_file_of(name: str, rank: int) -> str:
    """The path of the file with a rank's frozen arrays that the checkpoint `name` wrote."""
    return file_of(name + FROZEN, rank)


def fits(path: Path, file: File) -> bool:
    """True if a file is there and is what its checkpoint was written with."""
    try:
        with opened(path, file.num_bytes) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def write(folder: Path, manifest: Manifest) -> None:
    """Makes the checkpoint complete, all at once."""
    body = dataclasses.asdict(manifest)
    document = {"format": FORMAT, "version": VERSION, "checksum": checksum(body), "checkpoint": body}
    with whole(path_of(folder, manifest.name)) as file:
        file.write(json.dumps(document, indent=1).encode())


def read(path: Path) -> Manifest:
    """The manifest in the file `path`. What it says is looked at before anything else is opened or removed by it.

    Raises:
        CheckpointError: it is missing, damaged, of something else, or of another format.
    """
    try:
        with opened(path, MOST_BYTES) as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        raise CheckpointError(f"keras-par: there is no checkpoint '{path}': correct the path.") from None
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise damaged(path, f"its manifest cannot be read ({why})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"keras-par: '{path}' is no checkpoint of keras-par, which would name itself '{FORMAT}'.")
    version = document.get("version")
    if type(version) is int and version not in READ_VERSIONS and 0 < version < 1000:
        raise CheckpointError(
            f"keras-par: checkpoint '{path}' has format {version}, but this version of keras-par reads formats "
            f"{READ_VERSIONS[0]} to {READ_VERSIONS[-1]} alone: install the version of keras-par that wrote it, or give "
            "another folder."
        )
    try:
        body = document.get("checkpoint")
        if not isinstance(body, dict) or document.get("checksum") != checksum(body):
            raise damaged(path, "its manifest does not fit its checksum")
        if type(version) is not int or version not in READ_VERSIONS:
            raise UnfitError("version")
        return manifest_of(body if version == VERSION else {**body, "frozen": []}, path.stem)
    except RecursionError as error:
        raise damaged(path, f"its manifest cannot be read ({error})") from None
    except UnfitError as error:
        raise damaged(path, f"its manifest is wrong in the field {str(error)!a}") from None


def manifest_of(body: dict[str, Any], name: str) -> Manifest:
    """What the manifest of a checkpoint says, which has this name.

    Raises:
        UnfitError: something in it is not what it must be.
    """
    said = Fields(body, "")
    mesh = said.take("mesh", mesh_of)
    found = Manifest(
        name=said.take("name", one_of(name)),
        serial=said.take("serial", fields.count),
        mesh=mesh,
        epoch=said.take("epoch", fields.count),
        step=said.take("step", fields.count),
        position=said.take("position", or_none(position_of)),
        seed=said.take("seed", fields.whole_number),
        monitored=said.take("monitored", or_none(monitored_of)),
        variables=said.take("variables", list_of(lambda each: variable_of(each, mesh))),
        versions=said.take("versions", versions_of),
        files=said.take("files", list_of(file_from)),
        frozen=said.take("frozen", list_of(or_none(file_from))),
        stopped=said.take("stopped", fields.flag),
    )
    said.end()
    if [file.path for file in found.files] != [file_of(name, rank) for rank in range(found.world_size)]:
        raise UnfitError("files")
    are_frozen = [file is None or is_frozen_file(file.path, rank, name) for rank, file in enumerate(found.frozen)]
    if len(are_frozen) not in (0, found.world_size) or not all(are_frozen):
        raise UnfitError("frozen")
    if len({variable.name for variable in found.variables}) < len(found.variables):
        raise UnfitError("variables")
    return found


def is_frozen_file(path: str, rank: int, name: str) -> bool:
    """True for the path of a rank's frozen arrays that a checkpoint of the same prefix as `name` may have written."""
    written_by = path.removeprefix(f"rank.{rank}/").removesuffix(FROZEN + SUFFIX)
    own, other = NAME.fullmatch(name), NAME.fullmatch(written_by)
    is_same_prefix = own is not None and other is not None and own["prefix"] == other["prefix"]
    return is_same_prefix and path == frozen_file_of(written_by, rank)


def mesh_of(content: Any) -> Grid:
    said = Fields(content, "mesh.")
    shape = said.take("shape", list_of(fields.size, MOST_DIMS))
    names = said.take("axis_names", list_of(fields.text, MOST_DIMS))
    ranks = said.take("ranks", list_of(fields.count))
    batch, replica = said.take("batch_axis", fields.text), said.take("replica_axis", or_none(fields.text))
    said.end()
    if not len(shape) == len(names) == len(set(names)):
        raise UnfitError("mesh.axis_names")
    if batch not in names or batch == replica or (replica is not None and replica not in names):
        raise UnfitError("mesh.batch_axis")
    try:
        return Grid(tuple(shape), tuple(names), tuple(ranks), batch, replica)
    except ValueError:
        raise UnfitError("mesh.ranks") from None


def variable_of(content: Any, mesh: Grid) -> Variable:
    said = Fields(content, "variables.")
    found = Variable(
        name=said.take("name", fields.text),
        shape=said.take("shape", list_of(fields.count, MOST_DIMS)),
        dtype=said.take("dtype", fields.text),
        across_ranks=said.take("across_ranks", one_of("same", "sum", "mean", "first")),
        axes=said.take("axes", list_of(or_none(one_of(*mesh.axis_names)))),
    )
    said.end()
    own = [axis for axis in found.axes if axis is not None]
    if len(found.axes) not in (0, len(found.shape)) or len(set(own)) < len(own):
        raise UnfitError("variables.axes")
    return found


def file_from(content: Any) -> File:
    said = Fields(content, "files.")
    found = File(said.take("path", fields.text), said.take("num_bytes", fields.count), said.take("sha256", fields.text))
    said.end()
    return found


def position_of(value: Any) -> list:
    """The position in the data, as `keras_patches.inputs.input.Position` has it."""
    counts = (fields.count, or_none(fields.count), or_none(fields.count), fields.count)
    if not isinstance(value, list) or len(value) != len(counts) + 2:
        raise ValueError
    earlier, *numbers, order = value
    if not isinstance(earlier, str) or not re.fullmatch("[01]*", earlier):
        raise ValueError
    found = [earlier, *(kind(each) for kind, each in zip(counts, numbers, strict=True)), order]
    if order is not None:
        try:
            generators.set_python(json.loads(order), random.Random())
        except Exception:  # whatever Python's generator raises where it is given something else
            raise ValueError from None
    return found


def monitored_of(value: Any) -> list:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError
    return [fields.text(value[0]), fields.number(value[1])]


def versions_of(value: Any) -> dict[str, str]:
    said = Fields(value, "versions.")
    return {name: said.take(name, fields.text) for name in value}


def damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"keras-par: checkpoint '{path}' is damaged, {why}: use an older one, or restore it from a backup."
    )


def checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
