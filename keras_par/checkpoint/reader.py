"""A checkpoint's files, checked as streams of bytes and read one array at a time."""

import hashlib
from pathlib import Path

import numpy as np

from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import ArrayFile
from keras_par.checkpoint.grid import Part, overlap, within
from keras_par.checkpoint.manifest import CheckpointError, File, Manifest, Variable

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
            raise self._damaged(self.manifest.files[rank], f"cannot be read ({error})") from None

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
            with (self._folder / file.path).open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                num_bytes = stream.tell()
        except OSError as error:
            raise self._damaged(file, f"cannot be read ({error.strerror})") from None
        if num_bytes != file.num_bytes:
            raise self._damaged(file, f"has {num_bytes} bytes instead of {file.num_bytes}")
        if digest != file.sha256:
            raise self._damaged(file, "does not fit its checksum")
        try:
            self._file(rank).check()
        except ValueError as error:
            raise self._damaged(file, f"holds no arrays ({error})") from None
        finally:
            self.close()

    def _damaged(self, file: File, why: str) -> CheckpointError:
        path = manifests.path_of(self._folder, self.manifest.name)
        return manifests.damaged(path, f"its file {file.path} {why}")


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array, whose bits are those of `dtype` where the file has no name for it."""
    return array if array.dtype == dtype else array.view(dtype)
