"""A checkpoint's files, checked as streams of bytes and read one array at a time."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from safetensors import safe_open

from keras_par.base.regular_file import opened, require_folder
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import as_dtype, in_file
from keras_par.checkpoint.grid import Part, overlap, within
from keras_par.checkpoint.manifest import CheckpointError, File, Manifest, Variable

MOST_OPEN = 64  # files at a time
MOST_CHARACTERS = 200  # of why a file cannot be read


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
        self._open: dict[str, Any] = {}
        self._frozen: dict[int, frozenset[str]] = {}  # each rank's arrays that are not in its own file
        for rank in range(len(manifest.files)):
            self._check(rank)

    def names(self, rank: int) -> list[str]:
        """The arrays in the files of the rank that wrote them."""
        return [*self._arrays(self.manifest.files[rank]).keys(), *self._frozen[rank]]

    def read(self, rank: int, name: str, part: Part | None = None) -> np.ndarray:
        """An array of one rank's files, or a part of it that is not empty.

        Raises:
            CheckpointError: the file cannot be read any more, or has no such array.
        """
        file = self._file_with(rank, name)
        try:
            arrays = self._arrays(file)
            return arrays.get_slice(name)[part] if part else arrays.get_tensor(name)
        except Exception as error:  # whatever the library and NumPy raise where a file is something else
            raise self.damaged(file, f"cannot be read ({first_line(error)})") from None

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

    def without_random_states(self, rank: int) -> CheckpointError:
        """The error that a rank's file lacks what Python's and NumPy's generators were at."""
        return self.damaged(self.manifest.files[rank], "has no states of random generators")

    def damaged(self, file: File, why: str) -> CheckpointError:
        """The error that a file cannot be used."""
        return manifests.damaged(manifests.path_of(self._folder, self.manifest.name), f"its file {file.path} {why}")

    def close(self) -> None:
        """Closes the files; reading opens them again."""
        self._open.clear()

    def _file_with(self, rank: int, name: str) -> File:
        """That of a rank's files which has an array."""
        return self.manifest.files_of(rank)[name in self._frozen[rank]]

    def _arrays(self, file: File) -> Any:
        if file.path not in self._open:
            if len(self._open) == MOST_OPEN:
                self.close()
            self._open[file.path] = safe_open(self._folder / file.path, framework="np")
        return self._open[file.path]

    def _check(self, rank: int) -> None:
        own, *frozen = [self._checked_names(file) for file in self.manifest.files_of(rank)]
        self._frozen[rank] = frozenset().union(*frozen) - own
        mesh = self.manifest.mesh
        for variable in mesh.written_by(rank, self.manifest.variables):
            shape = [part.stop - part.start for part in mesh.part(variable, rank)]
            file = self._file_with(rank, variable.name)
            try:
                found = self._arrays(file).get_slice(variable.name)
                dtype = np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)
                is_there = in_file(dtype, shape) == (found.get_dtype(), found.get_shape())
            except Exception:  # there is no such array, or no such dtype
                is_there = False
            if not is_there:
                name, kind = variable.name[:99], variable.dtype[:20]
                raise self.damaged(file, f"lacks variable {name!r} of shape {shape} and dtype {kind!r}")
        self.close()

    def _checked_names(self, file: File) -> frozenset[str]:
        """The arrays in a file, whose bytes are those that were written."""
        try:
            require_folder((self._folder / file.path).parent)
            with opened(self._folder / file.path) as stream:
                num_bytes = os.fstat(stream.fileno()).st_size
                if num_bytes != file.num_bytes:
                    raise self.damaged(file, f"has {num_bytes} bytes instead of {file.num_bytes}")
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise self.damaged(file, f"cannot be read ({error.strerror})") from None
        if digest != file.sha256:
            raise self.damaged(file, "does not fit its checksum")
        try:
            return frozenset(self._arrays(file).keys())
        except Exception as error:
            raise self.damaged(file, f"holds no arrays ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:MOST_CHARACTERS]
