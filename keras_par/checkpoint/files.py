"""Files that are there whole or not at all, and arrays in them that are read without running anything."""

import contextlib
import hashlib
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from keras_par.base.regular_file import opened

TEMPORARY = ".writing"
BLOCK_BYTES = 2**21  # read at once
MOST_CHARACTERS = 200  # of why a file is none
ZIP_HEADER = struct.Struct("<26xHH")  # before each member: the lengths of its name and of what follows that

Arrays = Mapping[str, np.ndarray]


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


class ArrayFile:
    """An .npz file whose arrays are read one at a time, as a whole or in part.

    NumPy's archives are not compressed, so that an array's rows are found without reading those before.

    Raises:
        ValueError: it is no such file.
    """

    def __init__(self, path: Path):
        with contextlib.ExitStack() as until_it_is_one, told_as_value_error():
            self._file = until_it_is_one.enter_context(opened(path))
            self._num_bytes = os.fstat(self._file.fileno()).st_size
            with zipfile.ZipFile(self._file) as archive:
                members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
            if any(each.compress_type != zipfile.ZIP_STORED for each in members.values()):
                raise ValueError("it is compressed")
            self._begins = {name: each.header_offset for name, each in members.items()}
            until_it_is_one.pop_all()

    @property
    def names(self) -> list[str]:
        """Of its arrays."""
        return list(self._begins)

    def headers(self) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
        """Shape and dtype of each array.

        Raises:
            ValueError: one is no array, one that only pickle could read, or one that the file has no room for.
        """
        return {name: self._header(name) for name in self._begins}

    def read(self, name: str, part: tuple[slice, ...] | None = None) -> np.ndarray:
        """An array, or a part of it; besides that, some megabytes are in memory.

        Args:
            name: of the array.
            part: for each dim where the part begins and ends; None for the whole array.

        Raises:
            ValueError: there is no such array, it does not have that part, or the file is damaged.
        """
        shape, dtype = self._header(name)
        part = tuple(slice(0, size) for size in shape) if part is None else part
        if len(part) != len(shape) or any(each.stop > size for each, size in zip(part, shape, strict=True)):
            raise ValueError(f"array '{name}' has the shape {shape}")
        with told_as_value_error():
            result = np.empty([each.stop - each.start for each in part], dtype)
        if not result.size:
            return result
        num_ones = next((dim for dim, size in enumerate(shape[:-1]) if size != 1), len(shape) - 1)
        with told_as_value_error():
            read_rows(self._file, shape[num_ones:], part[num_ones:], result.reshape(result.shape[num_ones:]))
        return result

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an array, whose first row the file is then at."""
        with told_as_value_error():
            self._file.seek(self._begins[name])
            head = self._file.read(ZIP_HEADER.size)
            if len(head) < ZIP_HEADER.size:
                raise ValueError("it ends too early")
            self._file.seek(sum(ZIP_HEADER.unpack(head)), os.SEEK_CUR)
            shape, dtype = header(self._file)
            has_room = math.prod(shape) * max(1, dtype.itemsize) <= self._num_bytes - self._file.tell()
            if not has_room or min(shape, default=0) < 0:
                raise ValueError(f"array '{name}' has the shape {shape}")
            return shape, dtype


@contextlib.contextmanager
def told_as_value_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(error.strerror) from None
    except Exception as error:  # whatever zipfile and NumPy raise where a file is something else
        raise ValueError(next(iter(str(error).splitlines()), type(error).__name__)[:MOST_CHARACTERS]) from None


def header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array of which a file of NumPy's format is at the begin."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject or is_fortran:
        raise ValueError(f"an array is of {'objects' if dtype.hasobject else 'another order'}")
    return shape, dtype


def read_rows(file: IO[bytes], shape: tuple[int, ...], part: tuple[slice, ...], result: np.ndarray) -> None:
    """Fills `result` with a part of an array that follows in the file, some rows at a time."""
    if not shape:
        result[...] = np.frombuffer(file.read(result.itemsize), result.dtype)[0]
        return
    row_bytes = math.prod(shape[1:]) * result.itemsize
    first, last = part[0].start, part[0].stop
    file.seek(row_bytes * first, os.SEEK_CUR)
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for begin in range(first, last, step):
        end = min(begin + step, last)
        rows = np.frombuffer(file.read(row_bytes * (end - begin)), result.dtype).reshape(end - begin, *shape[1:])
        result[begin - first : end - first] = rows[(slice(None), *part[1:])]


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
