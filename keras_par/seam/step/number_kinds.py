"""Tells of numbers that a step of the user's own keeps or returns whether the ranks' are averaged or added up."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_par.plan.options import Reduction
from keras_par.seam.rows.row_dims import ALIKE, RowDims, Rows
from keras_par.seam.step.known_losses import LINEAR, require_known
from keras_par.sharding.step import Step

Key = tuple[str, ...]


def of_update(step: Step, metric: str, value: tf.Tensor) -> Reduction:
    """What a scalar is that a metric is updated by: as the look at the step has found, else as the step's scalars.

    Args:
        step: that updates it.
        metric: its name.
        value: the scalar.

    Raises:
        LossUnknown: nobody has looked yet, and it is not known what the scalar is.
    """
    if step.is_stock:
        return "mean"
    otherwise: Reduction = "sum" if step.adds_up else "mean"
    number = step.num_updates[metric] = step.num_updates.get(metric, 0) + 1
    key = ("metric", metric, str(number))
    if step.probe is not None:
        step.probe.numbers[key] = value
    require_known(step, [value])
    return step.binding.kinds_of_numbers.get(step.method, {}).get(key, otherwise)


def in_logs(logs: Any) -> dict[Key, Any]:
    """The numbers in a step's logs, by keys of which the rest leads to them."""
    if not isinstance(logs, dict):
        return {}
    found = {key_in_logs(place): at(logs, place) for place in places_in(logs)}
    return {key: each for key, each in found.items() if is_number(each)}


def key_in_logs(place: tuple[str, ...]) -> Key:
    return ("logs", *map(str, place))


def is_number(value: Any) -> bool:
    """True for a scalar, of Python's, NumPy's, TensorFlow's or Keras's."""
    if not hasattr(value, "dtype"):
        return isinstance(value, (int, float))
    dtype = tf.as_dtype(value.dtype)
    return np.ndim(value) == 0 and (dtype.is_floating or dtype.is_integer or dtype.is_bool)


def places_in(logs: dict) -> Iterator[tuple[str, ...]]:
    """The keys that lead to each value that is no dict."""
    for key, value in logs.items():
        yield from ((key, *rest) for rest in places_in(value)) if isinstance(value, dict) else ((key,),)


def put(logs: dict, place: tuple[str, ...], value: Any) -> None:
    at(logs, place[:-1])[place[-1]] = value


def at(logs: Any, place: tuple[str, ...]) -> Any:
    """The value at a place, None if there is none."""
    for key in place:
        logs = logs.get(key) if isinstance(logs, dict) else None
    return logs


def reduced_by(dims: RowDims, number: tf.Tensor) -> Reduction | None:
    """What makes a scalar of a graph of the batch's rows; None if that is neither only means nor only sums.

    A mean of something that is 0 in all rows of a batch, as an accuracy may be in the first one, tells by its value
    not that it is none of sums.
    """
    kinds: set[Reduction] = set()
    rest = [number]
    while rest:
        tensor = rest.pop()
        if dims.of(tensor) is ALIKE:
            continue
        inputs, kind = list(tensor.op.inputs), tensor.op.type
        if kind in ("Mean", "Sum"):
            if isinstance(dims.of(inputs[0]), Rows):
                kinds.add("mean" if kind == "Mean" else "sum")
                continue
            inputs = inputs[:1]
        elif kind == "Mul":
            inputs = [each for each in inputs if dims.of(each) is not ALIKE]
            if len(inputs) > 1:
                return None
        elif kind not in LINEAR or kind == "RealDiv":  # the divisor may be a number of rows
            return None
        rest += inputs
    return kinds.pop() if len(kinds) == 1 else None
