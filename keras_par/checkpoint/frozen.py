"""The file with what training does not change of a rank's arrays, so that each checkpoint does not write it again."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open

from keras_par.checkpoint.files import bytes_of, write_arrays
from keras_par.checkpoint.manifest import File, fits


class Frozen:
    """Which of this rank's arrays a file has as they are, and which file that is."""

    def __init__(self) -> None:
        self.file: File | None = None
        self._path: Path | None = None
        self._sums: dict[str, bytes] = {}
        self._offered: tuple[Path, File] | None = None

    def offer(self, path: Path, file: File) -> None:
        """Names the file that an earlier job has left, as if this one had written it."""
        self._offered = path, file

    def put(self, path: Path, relative: str, arrays: Mapping[str, np.ndarray]) -> frozenset[str]:
        """Writes arrays to a file, if the file before has not most of them as they are.

        Args:
            path: of the file, if one is written.
            relative: that below the folder of the checkpoints.
            arrays: by their names.

        Returns:
            The names of those that `file` has as they are.
        """
        self._take_offered()
        sums = {name: hashlib.sha256(bytes_of(array)).digest() for name, array in arrays.items()}
        same = frozenset(name for name, each in sums.items() if self._sums.get(name) == each)
        num_bytes, num_same_bytes = (sum(arrays[name].nbytes for name in names) for names in (sums, same))
        if self._is_there() and 2 * num_same_bytes >= num_bytes:
            return same
        self.file, self._path, self._sums = File(relative, *write_arrays(path, arrays)), path, sums
        return frozenset(arrays)

    def _take_offered(self) -> None:
        offered, self._offered = self._offered, None
        if offered is None or self.file is not None or not fits(*offered):
            return
        try:
            with safe_open(offered[0], framework="np") as found:
                sums = {name: hashlib.sha256(bytes_of(found.get_tensor(name))).digest() for name in list(found.keys())}
        except Exception:  # whatever the library raises where a file is something else
            return
        self._path, self.file = offered
        self._sums = sums

    def _is_there(self) -> bool:
        """False where somebody has removed the file, or there is none."""
        try:
            return self.file is not None and self._path is not None and self._path.stat().st_size == self.file.num_bytes
        except OSError:
            return False
