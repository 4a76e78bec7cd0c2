"""Probes metrics of the user's own: is their value on several ranks one process's, tried on two halves of a batch."""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_par.comm.communicator import SoloCommunicator
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.step.halves import COMBINATIONS, alike, combinations, of_halves, orders, rows_of
from keras_par.keras_patches.step.metric_states import kept
from keras_par.keras_patches.step.metrics import operation_of
from keras_par.keras_patches.step.number_kinds import leaves
from keras_par.keras_patches.table.patch import wrap
from keras_par.sharding import step as steps

CLOSE, SMALL = 1e-4, 1e-2  # a relative distance that rounding explains, also of what is smaller than SMALL


class MetricProbe:
    """Notes a batch of each metric that is not Keras's own, and tries once whether halves of it make the whole.

    Noting costs a copy of the metric's arguments in each step; a model whose metrics are all Keras's has nothing to
    note. Trying works on the metric itself, whose state is restored, and costs no collective.

    Args:
        model: compiled.
        binding: the model's.
    """

    def __init__(self, model: keras.Model, binding: Binding):
        self._binding = binding
        self._updates: dict[int, Any] = {}  # of what `update_state` was given, a nest of variables and other values
        self._untried = {id(metric): metric for metric in own_metrics(model)} if binding.data.rank == 0 else {}
        for metric in self._untried.values():
            wrap(type(metric), "update_state", noted)

    def note(self, metric: keras.metrics.Metric, given: tuple[tuple, dict[str, Any]]) -> None:
        """In a step, keeps what a metric is given, if it has yet to be tried and its rows are dense."""
        if id(metric) not in self._untried:
            return
        values = tree.flatten(given)
        if any(isinstance(value, (tf.RaggedTensor, tf.SparseTensor)) for value in values):
            del self._untried[id(metric)]
            return
        if id(metric) not in self._updates:
            self._updates[id(metric)] = tree.map_structure(holder, given)
        for place, value in zip(tree.flatten(self._updates[id(metric)]), values, strict=True):
            if isinstance(place, tf.Variable):
                place.assign(value)

    def compare(self) -> None:
        """Outside of a step, tries the metrics of which two rows or more have been noted, and warns of those it finds.

        A metric that cannot be tried outside of a step is left.
        """
        for number, update in list(self._updates.items()):
            given = tree.map_structure(lambda leaf: leaf.numpy() if isinstance(leaf, tf.Variable) else leaf, update)
            num_rows = next((len(leaf) for leaf in tree.flatten(given) if np.ndim(leaf)), 0)
            if num_rows < 2:
                continue
            metric = self._untried.pop(number)
            del self._updates[number]
            said = complaint(self._binding, metric, given, num_rows)
            if said:
                warnings.warn(f"keras-par: metric '{metric.name}' {said}.", stacklevel=2)


def noted(original):
    """Lets the probe of the step's model see what a metric is given."""

    def replacement(self, *args, **kwargs):
        step = steps.current()
        if step is not None and not step.compiled and step.binding.metric_probe is not None:
            step.binding.metric_probe.note(self, (args, kwargs))
        return original(self, *args, **kwargs)

    return replacement


def own_metrics(model: keras.Model) -> Iterator[keras.metrics.Metric]:
    """The metrics in a model that are not of Keras's making."""
    for metric in leaves(model.metrics):
        function = getattr(metric, "_fn", None)
        made_of = type(metric) if function is None else function
        if not getattr(made_of, "__module__", type(made_of).__module__).startswith(("keras.src.", "keras_par.")):
            yield metric


def holder(value: Any) -> Any:
    """A variable for tensors like this one, of any shape; a value that is no tensor stays."""
    if not (tf.is_tensor(value) or isinstance(value, (np.ndarray, keras.Variable))):
        return value
    dtype = tf.convert_to_tensor(value).dtype
    with tf.init_scope():
        return tf.Variable(tf.zeros([0], dtype), trainable=False, shape=tf.TensorShape(None))


def halved(binding: Binding, metric: keras.metrics.Metric, given: Any, num_rows: int) -> tuple[tuple, list, list]:
    """A metric's state after a batch and after each half, its results as ranks have them, and of the whole batch."""
    variables = metric.variables
    [order, _] = orders(num_rows)

    def state() -> list[np.ndarray]:
        return [variable.numpy() for variable in variables]

    def state_after(rows: np.ndarray) -> list[np.ndarray]:
        metric.reset_state()
        arguments, keywords = rows_of(given, num_rows, rows)
        with steps.Step(binding, len(rows), len(order), thin=False, communicator=SoloCommunicator()).current():
            metric.update_state(*arguments, **keywords)
        return state()

    def result_of(values: list[np.ndarray]) -> list[np.ndarray]:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return [keras.ops.convert_to_numpy(leaf) for leaf in tree.flatten(metric.result())]

    with kept(variables):
        whole, first, second = of_halves(state_after, order)
        metric.reset_state()
        begin = state()  # of sums it counts once
        names = [operation_of(metric, variable) for variable in variables]
        combined = [COMBINATIONS[name](*each) for name, *each in zip(names, first, second, strict=True)]
        combined = [v - b if n == "sum" else v for n, v, b in zip(names, combined, begin, strict=True)]
        return (whole, first, second), result_of(combined), result_of(whole)


def complaint(binding: Binding, metric: keras.metrics.Metric, given: Any, num_rows: int) -> str | None:
    """What is wrong with a metric whose state is that of two halves of a batch, combined as ranks combine theirs."""
    try:
        states, ours, theirs = halved(binding, metric, given, num_rows)
    except Exception:  # code of the user's own, which may need to be in a graph
        return None
    if all(alike(*pair, CLOSE, SMALL) for pair in zip(ours, theirs, strict=True)):
        return None
    seen = f"({shown(theirs)} in one process, {shown(ours)} here, of a batch in two halves)"
    among = ("sum", "mean", "max", "min", "first")
    better = [combinations(*each, CLOSE, among, SMALL) for each in zip(*states, strict=True)]
    if [] in better:
        return (
            f"is another one on several ranks than in one process {seen}, because it looks across the rows of a batch, "
            "of which each rank has its own: keep sums over rows in its variables, and let result() make of them what "
            "it shows"
        )
    advice = {variable.name: names[0] for variable, names in zip(metric.variables, better, strict=True)}
    return (
        f"is another one on several ranks than in one process {seen}, because its variables are no sums over rows: say "
        f"how the ranks' are combined, as by metric.across_ranks = {advice}"
    )


def shown(result: list[np.ndarray]) -> str:
    return ", ".join(f"{float(np.ravel(leaf)[0]):.4g}" if np.size(leaf) == 1 else "..." for leaf in result[:3])
