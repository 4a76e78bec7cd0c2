"""A checkpoint's files, checked as streams of bytes and read one array at a time."""

import hashlib
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from keras_par.base.regular_file import opened, require_folder
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import ArrayFile, bits
from keras_par.checkpoint.grid import Part, overlap, within
from keras_par.checkpoint.manifest import CheckpointError, Manifest, Variable

MOST_OPEN = 64  # files at a time


class Reader:
    """The arrays in the files of a checkpoint, whatever ranks have written them.

    Args:
        folder: of the checkpoints.
        manifest: of this one.

    Raises:
        CheckpointError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, manifest: Manifest):
        self.manifest = manifest
        self._folder = folder
        self._open: dict[int, ArrayFile] = {}
        for rank in range(len(manifest.files)):
            self._check(rank)

    def names(self, rank: int) -> list[str]:
        """The arrays in the file of the rank that wrote it."""
        return self._file(rank).names

    def read(self, rank: int, name: str, part: Part | None = None) -> np.ndarray:
        """An array of one rank's file, or a part of it, which besides some megabytes is all that comes into memory.

        Raises:
            CheckpointError: the file cannot be read any more.
        """
        try:
            return self._file(rank).read(name, part)
        except ValueError as error:
            raise self.damaged(rank, f"cannot be read ({error})") from None

    def part_of(self, variable: Variable, place: int, wanted: Part, dtype: np.dtype) -> np.ndarray:
        """A part of a variable's value at one place of the data, put together from the files that have some of it.

        Raises:
            CheckpointError: a file cannot be read any more.
        """
        result: np.ndarray | None = None
        for rank, held in self.manifest.mesh.parts(variable, place):
            common = overlap(held, wanted)
            if common is None:
                continue
            piece = as_dtype(self.read(rank, variable.name, within(common, held)), dtype)
            if common == wanted:
                return piece
            if result is None:
                result = np.empty([each.stop - each.start for each in wanted], dtype)
            result[within(common, wanted)] = piece
        return np.empty([each.stop - each.start for each in wanted], dtype) if result is None else result

    def damaged(self, rank: int, why: str) -> CheckpointError:
        """The error that a rank's file cannot be used."""
        path = manifests.path_of(self._folder, self.manifest.name)
        return manifests.damaged(path, f"its file {self.manifest.files[rank].path} {why}")

    def close(self) -> None:
        """Closes the files; reading opens them again."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _file(self, rank: int) -> ArrayFile:
        if rank not in self._open:
            if len(self._open) == MOST_OPEN:
                self.close()
            self._open[rank] = ArrayFile(self._folder / self.manifest.files[rank].path)
        return self._open[rank]

    def _check(self, rank: int) -> None:
        file = self.manifest.files[rank]
        try:
            require_folder((self._folder / file.path).parent)
            with opened(self._folder / file.path) as stream:
                num_bytes = os.fstat(stream.fileno()).st_size
                if num_bytes != file.num_bytes:
                    raise self.damaged(rank, f"has {num_bytes} bytes instead of {file.num_bytes}")
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise self.damaged(rank, f"cannot be read ({error.strerror})") from None
        if digest != file.sha256:
            raise self.damaged(rank, "does not fit its checksum")
        try:
            headers = self._file(rank).headers()
        except ValueError as error:
            raise self.damaged(rank, f"holds no arrays ({error})") from None
        finally:
            self.close()
        mesh = self.manifest.mesh
        for variable in mesh.written_by(rank, self.manifest.variables):
            shape = tuple(part.stop - part.start for part in mesh.part(variable, rank))
            if headers.get(variable.name) != (shape, stored(variable.dtype)):
                name, dtype = variable.name[:99], variable.dtype[:20]
                raise self.damaged(rank, f"lacks variable {name!r} of shape {shape} and dtype {dtype!r}")


def stored(name: str) -> np.dtype | None:
    """The dtype in files of variables of a dtype of this name; None if there is none such."""
    try:
        return bits(np.empty(0, tf.as_dtype(name).as_numpy_dtype)).dtype
    except (TypeError, KeyError, ValueError):
        return None


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array, whose bits are those of `dtype` where the file has no name for it."""
    return array if array.dtype == dtype else array.view(dtype)
