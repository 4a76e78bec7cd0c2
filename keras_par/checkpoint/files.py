"""Files that are there whole or not at all, and arrays in them that are read without running anything."""

import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEMPORARY = ".writing"

Arrays = Mapping[str, np.ndarray]


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Any]:
    """A file to write under another name; then waits until it is on the disk, and gives it its name."""
    unfinished = path.with_name(path.name + TEMPORARY)
    with unfinished.open("w+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def write_arrays(path: Path, arrays: Arrays) -> tuple[int, str]:
    """Writes arrays as NumPy's .npz, whole or not at all; returns the file's size and SHA-256.

    Arrays of dtypes that NumPy does not know, as bfloat16, are written as unsigned integers of their size.
    """
    content: Any = {name: bits(array) for name, array in arrays.items()}
    with whole(path) as file:
        np.savez(file, **content)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return file.tell(), digest


def read_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of an .npz file's bytes.

    Raises:
        ValueError: they are no such file, or one that only pickle could read.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, KeyError, OSError) as error:
        raise ValueError(str(error)) from None


def bits(array: np.ndarray) -> np.ndarray:
    """`array`, or its bits as unsigned integers if NumPy's file format has no name for its dtype."""
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def sync_folder(folder: Path) -> None:
    """Waits until the folder's own entries are on the disk, so that a rename outlives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
