"""Tells of numbers that a step of the user's own keeps or returns whether the ranks' are averaged or added up."""

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileMetrics, MetricsList

from keras_par.keras_patches.rows.row_dims import ALIKE, RowDims, Rows
from keras_par.keras_patches.step.known_losses import LINEAR, require_known, terms
from keras_par.plan.options import Reduction
from keras_par.sharding.step import Step

Key = tuple[str, ...]  # the same in each trace of a step and on all ranks


def of_update(step: Step, metric: Any, value: tf.Tensor) -> Reduction:
    """What a scalar is that a metric is updated by: as the look at the step has found, else as the step's scalars.

    Raises:
        LossUnknown: nobody has looked yet, and it is not known what the scalar is.
    """
    if step.is_stock:
        return "mean"
    otherwise: Reduction = "sum" if step.adds_up else "mean"
    key = step.keys_of_metrics.get(id(metric))
    if key is None:  # a metric that is not the model's
        return otherwise
    if step.probed is not None:
        step.probed.numbers.append((key, value))
    require_known(step, [value])
    return kind_of(step.binding, step.method, key, otherwise)


def keys_of_metrics(model: keras.Model) -> dict[int, Key]:
    """The keys of what a model's metrics are updated by, by the metrics' ids."""
    return {id(metric): ("metric", str(place)) for place, metric in enumerate(leaves(model.metrics))}


def kind_of(binding: Any, method: str, key: Key, otherwise: Reduction) -> Reduction:
    """What a number of a step is; a mean if a probe has not found it, and `otherwise` if there was no probe.

    A test step that was not probed is taken to keep and return what the training step does.
    """
    found = binding.numbers.get(method, binding.numbers.get("train_step"))
    return otherwise if found is None else found.get(key, "mean")


def in_logs(logs: Any) -> dict[Key, Any]:
    """The numbers in a step's logs, by keys of which the rest leads to them."""
    if not isinstance(logs, dict):
        return {}
    return {key_in_logs(place): at(logs, place) for place in numbers_in(logs)}


def key_in_logs(place: tuple[str, ...]) -> Key:
    return ("logs", *map(str, place))


def numbers_in(logs: dict) -> list[tuple[str, ...]]:
    """The keys that lead to each number."""
    return [place for place in places_in(logs) if is_number(at(logs, place))]


def is_number(value: Any) -> bool:
    """True for a scalar, of Python's, NumPy's, TensorFlow's or Keras's."""
    if not hasattr(value, "dtype"):
        return isinstance(value, (int, float))
    dtype = tf.as_dtype(value.dtype)
    return tf.TensorShape(value.shape).rank == 0 and (dtype.is_floating or dtype.is_integer or dtype.is_bool)


def leaves(given: Iterable[keras.metrics.Metric]) -> Iterator[keras.metrics.Metric]:
    """Single metrics, where some are Keras's collections of them."""
    for metric in given:
        members = metric.metrics if isinstance(metric, (CompileMetrics, MetricsList)) else ()
        yield from leaves(members) if members else (metric,)


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

    A value of 0, as an accuracy may have in the first batch, does not tell means from sums; the graph does.
    """

    def reduces_rows(tensor: tf.Tensor) -> bool:
        return tensor.op.type in ("Mean", "Sum") and isinstance(dims.of(tensor.op.inputs[0]), Rows)

    among = set(LINEAR) - {"RealDiv"}  # the divisor may be a number of rows
    found = terms([number], lambda tensor: dims.of(tensor) is ALIKE, reduces_rows, among)
    kinds: set[Reduction] = {"mean" if tensor.op.type == "Mean" else "sum" for tensor in found or ()}
    return kinds.pop() if len(kinds) == 1 else None
