"""Reads rows by their numbers from what stands in place of an array: in memory, in HDF5, or anywhere else."""

from typing import Any

import numpy as np

SAMPLED_ROWS = 64  # how many rows of an array are looked at to see whether the ranks have the same


class RowReader:
    """Rows that are read when a batch needs them; `fit` takes it in place of an array, for x, y or sample_weight.

    Example:
        ```python
        kp.init()

        class Squares(kp.data.RowReader):  # read from files, it would be np.stack([np.load(paths[i]) for i in numbers])
            shape, dtype = (100, 1), "int64"

            def read(self, numbers):
                return np.square(numbers)[:, np.newaxis]

        x = Squares()  # for fit
        int(np.asarray(x).sum())  # -> 328350
        ```

    A subclass sets `shape`, rows first, and `dtype`, and defines `read`. Training on it is training on the array of all
    its rows: `fit` shuffles numbers of rows, and each rank reads only its own rows of a batch, besides the first and
    the last one, by which the ranks see at the beginning that all have the same. `validation_split`, `class_weight`,
    and Keras without keras-par read all rows.

    Raises:
        NotImplementedError: a subclass does not define `read`.

    Costs no collective.
    """

    shape: tuple[int, ...]
    dtype: Any
    in_memory = False  # True if all rows are there, to be made a tensor

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """The rows of these numbers, in their order; a number may come twice. Called by one thread at a time."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(np.arange(len(self))), dtype)


class Array(RowReader):
    """An array or a tensor of any library."""

    def __init__(self, array: Any):
        self.array, self.shape, self.in_memory = array, tuple(array.shape), True
        self.dtype = getattr(array, "dtype", None)  # a DataFrame has none

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return np.asarray(self.array)[numbers]


class Frame(Array):
    """A DataFrame of pandas, or a Series, which is one column, as Keras has it."""

    def read(self, numbers: np.ndarray) -> np.ndarray:
        own = self.array.iloc[numbers].to_numpy()
        return own if own.ndim > 1 else own[:, np.newaxis]


class Hdf5Dataset(Array):
    """A dataset of an HDF5 file, which is read in the file's order; texts are read at once."""

    def __init__(self, array: Any):
        super().__init__(array)
        self.in_memory = self.dtype.hasobject

    def read(self, numbers: np.ndarray) -> np.ndarray:
        in_order, places = np.unique(numbers, return_inverse=True)
        return self.array[in_order][places]


READERS: dict[str, type[Array]] = {"h5py.Dataset": Hdf5Dataset, "pandas.DataFrame": Frame, "pandas.Series": Frame}


def reader_of(leaf: Any) -> RowReader:
    """What reads the rows of an array, of what is registered in `READERS` by package and class, or of a reader."""
    if isinstance(leaf, RowReader):
        return leaf
    names = (f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(leaf).__mro__)
    return next((READERS[name] for name in names if name in READERS), Array)(leaf)
