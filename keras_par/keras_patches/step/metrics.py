"""Metrics of the whole job: the states are reduced over ranks, not the results, so that every metric is exact."""

import contextlib
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from keras.src.trainers.compile_utils import CompileMetrics
from keras.src.utils.tracking import DotNotTrackScope

from keras_par.comm.communicator import Communicator, ReduceOp
from keras_par.keras_patches.step import number_kinds
from keras_par.keras_patches.step.known_losses import looks_across_rows
from keras_par.keras_patches.step.number_kinds import at, numbers_in, places_in, put
from keras_par.keras_patches.table.uses import find
from keras_par.sharding import step as steps
from keras_par.sharding.collective_names import numbered
from keras_par.sharding.variable_views import local_view

# How metrics say that their variables are combined: by Keras's `aggregation` of a variable, which is "sum" unless said
# otherwise, or by an attribute of their own, {name of a variable: one of these}.
ACROSS_RANKS = "across_ranks"
OPERATIONS: dict[str, ReduceOp] = {"sum": "sum", "mean": "mean", "max": "max", "min": "min"}
FIRST, LOCAL = "first", "none"


def mean_update_state(original):
    """Weights an unweighted scalar by this rank's share of the rows.

    Such a scalar, like the loss that a training step tracks, is a mean over the batch or a sum; the ranks' states then
    add up to what one process would have added for the global batch.
    """

    def replacement(self, values, sample_weight=None):
        step = steps.current()
        if step is not None and tf.convert_to_tensor(values).shape.rank == 0:
            values = tf.convert_to_tensor(values)
            if number_kinds.of_update(step, self, values) == "sum":
                values = tf.cast(values, self.dtype)
                values = step.times(values, step.inverse_share(values.dtype))
            if sample_weight is None:
                sample_weight = step.share(self.dtype)
                values = step.times(values, tf.cast(step.local > 0, values.dtype)) if step.thin else values
        return original(self, values, sample_weight)

    return replacement


def wrapper_update_state(original):
    """Gives a function of Keras's that works along the batch all ranks' rows, of which each rank's value is the whole.

    It counts with the rank's share. Costs one all-gather for each argument.
    """

    def replacement(self, y_true, y_pred, sample_weight=None):
        step = steps.current()
        if step is None or step.compiled or step.communicator.size == 1 or not works_along_rows(self, y_pred):
            return original(self, y_true, y_pred, sample_weight)

        def gathered(rows):
            rows = tf.convert_to_tensor(rows)
            rows = rows[: step.local] if step.thin else rows
            return step.communicator.all_gather(rows, numbered("metric"))

        y_true, y_pred = gathered(y_true), gathered(y_pred)
        share = step.share(self.dtype)
        if sample_weight is not None:
            share = share * tf.cast(gathered(sample_weight), self.dtype)
        return original(self, y_true, y_pred, share)

    return replacement


def works_along_rows(metric: keras.metrics.Metric, y_pred) -> bool:
    """True for a function of Keras's with an axis that is the batch's, or that takes the batch as a whole."""
    function = getattr(metric._fn, "fn", metric._fn)
    return looks_across_rows(function, getattr(metric._fn, "_fn_kwargs", metric._fn_kwargs), len(y_pred.shape))


def results_by_name(model: keras.Model) -> dict[str, Any]:
    """What the guide returns as logs: each metric's result, a dict for those that `compile` was given.

    Of metrics with one name the first has it; others have their place, too.
    """
    found: dict[Any, Any] = {}
    for place, metric in enumerate(model.metrics):
        if not isinstance(metric, CompileMetrics) or metric.built:  # of `compile`'s, which have no result before
            found[(metric.name, place) if metric.name in found else metric.name] = tree.map_structure(
                value_now, metric.result()
            )
    return found


def combined(
    communicator: Communicator,
    logs: Any,
    own: dict[str, Any],
    everywhere: dict[str, Any],
    weight_of: Callable[[tuple[str, ...]], float],
) -> Any:
    """`logs` with results of metrics from `everywhere`; other numbers times their weights are summed over ranks.

    A number that on all ranks equals the result of a metric, first of that of its name, is this result. Costs one
    all-reduce.

    Args:
        communicator: of all ranks.
        logs: of a step of the user's own; what is no dict stays as it is.
        own: results of metrics, by their names, of this rank's rows.
        everywhere: the same of all rows.
        weight_of: this rank's weight of the number at a place in the logs, so that the ranks' add up.
    """
    if not isinstance(logs, dict):
        return logs
    result = tree.map_structure(lambda leaf: leaf, logs)
    numbers = numbers_in(logs)
    for place in places_in(logs):
        if place not in numbers and np.array_equal(at(logs, place), at(own, place)):
            put(result, place, at(everywhere, place))
    if not numbers:
        return result
    results = numbers_in(own)
    values = np.array([float(at(logs, place)) for place in numbers])
    differs = values[:, np.newaxis] != np.array([float(at(own, place)) for place in results])
    weighted = tf.math.multiply_no_nan(tf.constant(values, tf.float64), np.array(list(map(weight_of, numbers))))
    flags = tf.constant(np.append(differs, 0.0), tf.float64)  # never none
    totals, counts = communicator.all_reduce([weighted, flags], "kp.metrics.logs")
    ranks_that_differ = counts.numpy()[:-1].reshape(differs.shape)
    for place, total, ranks in zip(numbers, totals.numpy().tolist(), ranks_that_differ, strict=True):
        same = [each for each, count in zip(results, ranks, strict=True) if not count]
        found = place if place in same else next(iter(same), None)
        put(result, place, total if found is None else at(everywhere, found))
    return result


def value_now(result):
    """A result that is a variable, as a tensor that stays what it is."""
    return tf.identity(result.value) if isinstance(result, keras.Variable) else result


def operation_of(metric: keras.metrics.Metric, variable: keras.Variable) -> str:
    """How the ranks' values of a metric's variable make one: a key of OPERATIONS, "first" for rank 0's, or "none".

    Raises:
        ValueError: the metric's attribute `across_ranks` has another word for a variable.
    """
    said = getattr(metric, ACROSS_RANKS, {}).get(variable.name)
    if said is None:
        return FIRST if variable.aggregation == "only_first_replica" else variable.aggregation
    if said not in (*OPERATIONS, FIRST, LOCAL):
        raise ValueError(
            f"keras-par: metric '{metric.name}' has across_ranks[{variable.name!r}] = {said!r}: use one of "
            f"{', '.join(map(repr, (*OPERATIONS, FIRST, LOCAL)))}."
        )
    return said


def layer_state(model: keras.Model, but: Collection[keras.layers.Layer] = ()) -> list[keras.Variable]:
    """The variables that layers change without gradients; frozen weights are not among them.

    Args:
        model: whose layers are asked.
        but: those that are not, as they compute their state from the rows of all ranks.
    """
    left_out = set(map(id, but))
    asked = [layer for layer in layers(model) if id(layer) not in left_out]
    of_rows = row_state(model)
    return list({id(v): v for layer in asked for v in layer._non_trainable_variables if id(v) not in of_rows}.values())


def row_state(model: keras.Model) -> set[int]:
    """The ids of variables that stateful RNNs keep for each row of a batch, of which each rank has its own."""
    found = [
        layer.states for layer in layers(model) if isinstance(layer, keras.layers.RNN) and layer.states is not None
    ]
    return {id(variable) for variable in keras.tree.flatten(found)}


def layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and all layers in it."""
    return [model, *model._flatten_layers(include_self=False)]


def is_float(variable: keras.Variable) -> bool:
    return variable.dtype.startswith("float") or variable.dtype == "bfloat16"


@contextlib.contextmanager
def undone_unless(condition: tf.Tensor, model: keras.Model, but: Collection[keras.layers.Layer]):
    """Undoes what a block does to metrics and to state of this rank's rows where the scalar `condition` is false.

    Args:
        condition: whether this rank has rows.
        model: whose state it is.
        but: layers whose state is of the rows of all ranks.
    """
    variables = [*layer_state(model, but), *(v for metric in model.metrics for v in metric.variables)]
    with local_view():
        before = [tf.identity(variable.value) for variable in variables]
    yield
    with local_view():
        for variable, value in zip(variables, before, strict=True):
            variable.assign(tf.where(condition, variable.value, value))


metrics_to_logs = find("keras.src.trainers.trainer:Trainer._get_metrics_result_or_logs")


class NewestLoss(keras.metrics.Mean):
    """Keras's loss tracker that also remembers its newest value, weighted by this rank's rows."""

    def __init__(self):
        super().__init__(name="loss")
        # A plain variable, not a metric's: it is neither summed into logs nor undone.
        self.newest = tf.Variable([0.0, 0.0], trainable=False, dtype=tf.float64)

    def update_state(self, values, sample_weight=None):
        step = steps.current()
        weight = tf.cast(1 if step is None else step.local, tf.float64)
        self.newest.assign([tf.cast(tf.reduce_mean(values), tf.float64) * weight, weight])
        return super().update_state(values, sample_weight)


def track_newest_loss(model: keras.Model) -> NewestLoss:
    """Makes the compiled `model` track its newest loss from the next `fit` on, and returns where it stands."""
    if not isinstance(model._loss_tracker, NewestLoss):
        with DotNotTrackScope():  # the tracker is listed once among the model's metrics, as Keras's own is
            model._loss_tracker = NewestLoss()
        model.train_function = model.test_function = None
    return model._loss_tracker
