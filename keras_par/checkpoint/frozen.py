"""The file with what training does not change of a rank's arrays, so that each checkpoint does not write it again."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from keras_par.checkpoint.files import bytes_of, write_arrays
from keras_par.checkpoint.manifest import File


class Frozen:
    """Which of this rank's arrays a file has as they are, and which file that is."""

    def __init__(self) -> None:
        self.file: File | None = None
        self._path: Path | None = None
        self._sums: dict[str, bytes] = {}

    def put(self, path: Path, relative: str, arrays: Mapping[str, np.ndarray]) -> frozenset[str]:
        """Writes arrays to a file, if the file before has not most of them as they are.

        Args:
            path: of the file, if one is written.
            relative: that below the folder of the checkpoints.
            arrays: by their names.

        Returns:
            The names of those that `file` has as they are.
        """
        sums = {name: hashlib.sha256(bytes_of(array)).digest() for name, array in arrays.items()}
        same = frozenset(name for name, each in sums.items() if self._sums.get(name) == each)
        num_bytes, num_same_bytes = (sum(arrays[name].nbytes for name in names) for names in (sums, same))
        if self._is_there() and 2 * num_same_bytes >= num_bytes:
            return same
        self.file, self._path, self._sums = File(relative, *write_arrays(path, arrays)), path, sums
        return frozenset(arrays)

    def _is_there(self) -> bool:
        """False where somebody has removed the file, or there is none."""
        try:
            return self.file is not None and self._path is not None and self._path.stat().st_size == self.file.num_bytes
        except OSError:
            return False
