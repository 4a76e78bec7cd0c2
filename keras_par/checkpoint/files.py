"""Files that are there whole or not at all, and arrays in safetensors' format, which nothing runs to read."""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEMPORARY = ".writing"
SUFFIX = ".safetensors"
BLOCK_BYTES = 2**21  # read at once

# Dtypes of NumPy's and TensorFlow's that the format has, and that its reader gives as such.
DTYPES = {"bool": "BOOL", "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "complex64": "C64"}
DTYPES |= {f"{kind}{bits}": f"{kind[0].upper()}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Any]:
    """A file to write under another name; then waits until it is on the disk, and gives it its name."""
    unfinished = path.with_name(path.name + TEMPORARY)
    unfinished.unlink(missing_ok=True)  # which may be a link to a file elsewhere
    with unfinished.open("x+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_folder(path.parent)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[int, str]:
    """Writes arrays to a file that safetensors reads, whole or not at all; returns the file's size and SHA-256.

    safetensors' own writer gives the file to its owner alone, and leaves one of a random name where it is killed.
    """
    header: dict[str, dict[str, Any]] = {}
    end, digest = 0, hashlib.sha256()
    for name, array in (ordered := sorted(arrays.items(), key=lambda each: alignment(each[1].dtype), reverse=True)):
        dtype, shape = in_file(array.dtype, array.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces: Iterator[Any] = (bytes_of(array) for _, array in ordered)
    with whole(path) as file:
        for piece in itertools.chain([len(text).to_bytes(8, "little"), text], pieces):
            file.write(piece)
            digest.update(piece)
        return file.tell(), digest.hexdigest()


def bytes_of(array: np.ndarray) -> memoryview:
    """The bytes of an array, row by row; not copied if they lie like that."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def in_file(dtype: np.dtype, shape: Sequence[int]) -> tuple[str, list[int]]:
    """Dtype and shape of an array in a file; of dtypes that the format lacks, bytes along one more dim."""
    return (DTYPES[dtype.name], [*shape]) if dtype.name in DTYPES else ("U8", [*shape, dtype.itemsize])


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array of this dtype of which `array` was read from a file."""
    return array if array.dtype == dtype else array.view(dtype)[..., 0]


def alignment(dtype: np.dtype) -> int:
    """Of what place in a file an array must begin at a multiple."""
    return dtype.itemsize if dtype.name in DTYPES else 1


def sync_folder(folder: Path) -> None:
    """Waits until the folder's own entries are on the disk, so that a rename outlives a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
