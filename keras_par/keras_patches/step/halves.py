"""Compares what a probe gets for rows of a batch with what it gets for their halves, since nobody says what that is.

A mean over rows counts with a rank's share of them, a sum adds up, and what is neither needs the rows of all ranks.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_par.base import generators
from keras_par.keras_patches.inputs.components import counting_component, num_rows
from keras_par.keras_patches.inputs.shards import as_tensor, joined, take
from keras_par.keras_patches.step.metric_states import kept

CLOSE, HALF_CLOSE = 1e-3, 5e-2  # relative distances that rounding explains, and where numbers have 16 bits
# By which two halves of equal size may make the whole.
COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda first, second: np.concatenate([first, second]),
    "sum": np.add,
    "mean": lambda first, second: (first + second) / 2,
    "max": np.maximum,
    "min": np.minimum,
    "first": lambda first, second: first,
    "none": lambda first, second: first,
}

Result = TypeVar("Result")
Name = TypeVar("Name", bound=str)


def orders(num_rows: int) -> list[np.ndarray]:
    """Numbers of rows, an even number of them, in two orders: as they are, and so that a half is every other row."""
    rows = np.arange(num_rows // 2 * 2)
    return [rows, np.concatenate([rows[::2], rows[1::2]])]


def of_halves(run: Callable[[np.ndarray], Result], rows: np.ndarray) -> tuple[Result, Result, Result]:
    """What a function of the numbers of rows gives for all of them, for the first half, and for the second."""
    half = len(rows) // 2
    return run(rows), run(rows[:half]), run(rows[half:])


def combinations(whole: Any, first: Any, second: Any, close: float, among: Iterable[Name], *others: Any) -> list[Name]:
    """The keys of COMBINATIONS by which two halves make the whole, in the order of `among`; the rest as in `alike`."""
    made = {name: COMBINATIONS[name](first, second) for name in among}
    return [name for name, value in made.items() if alike(value, whole, close, first, second, *others)]


def alike(value: Any, wanted: Any, close: float, *others: Any) -> bool:
    """True if arrays differ by `close` times the largest of their numbers at most, or of the numbers of `others`."""
    value, wanted, *rest = [np.asarray(each, np.float64) for each in (value, wanted, *others)]
    largest = max(np.max(np.nan_to_num(np.abs(each)), initial=0) for each in (value, wanted, *rest))
    return value.shape == wanted.shape and np.allclose(value, wanted, 0, close * largest, equal_nan=True)


def num_rows_of(batch: Any) -> int:
    """The number of rows of a batch, whose values are known."""
    return int(num_rows(as_tensor(counting_component(batch))))


def rows_of(nest: Any, given: int, rows: np.ndarray) -> Any:
    """Some rows, by their numbers, of a nest of tensors of `given` rows; what has another number is left whole."""

    def cut(leaf: Any) -> Any:
        shape = tf.TensorShape(getattr(leaf, "shape", ()))
        if not shape.rank or shape[0] not in (given, None):
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            return joined([take(leaf, row, row + 1) for row in rows])
        return tf.gather(leaf, rows)

    return tree.map_structure(cut, nest)


@contextlib.contextmanager
def unchanged(model: keras.Model) -> Iterator[None]:
    """Puts back what calls of a model change: variables that are not trained, and generators of Python and NumPy."""
    seeds = [generator.state for layer in model._flatten_layers() for generator in layer._seed_generators]
    with kept([*model.non_trainable_variables, *model.metrics_variables, *seeds]), generators.kept():
        yield
