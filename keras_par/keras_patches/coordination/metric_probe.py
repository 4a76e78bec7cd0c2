"""Finds metrics whose value on several ranks is not one process's, by trying them on two halves of a batch."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from keras_par.comm.solo import SoloCommunicator
from keras_par.keras_patches.models.binding import Binding
from keras_par.keras_patches.step import metrics
from keras_par.keras_patches.step.number_kinds import leaves
from keras_par.keras_patches.table.patch import wrap
from keras_par.sharding import step as steps

RELATIVE, ABSOLUTE = 1e-4, 1e-6  # what rounding explains
COMBINATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "mean": lambda first, second: (first + second) / 2,
    "max": np.maximum,
    "min": np.minimum,
    "first": lambda first, second: first,
    "none": lambda first, second: first,
}


class Update(NamedTuple):
    """What a metric's `update_state` was given in the newest step: a nest of variables and of other values."""

    arguments: tuple
    keywords: dict[str, Any]


class MetricProbe:
    """Notes a batch of each metric that is not Keras's own, and tries once whether halves of it make the whole.

    Noting costs a copy of the metric's arguments in each step; a model whose metrics are all Keras's has nothing to
    note. Trying works on the metric itself, whose state is restored, and costs no collective.

    Args:
        model: compiled.
        binding: the model's.
    """

    def __init__(self, model: keras.Model, binding: Binding):
        self._alone = LoneBinding(binding)
        self._updates: dict[int, Update] = {}
        self._untried = {id(metric): metric for metric in own_metrics(model)} if binding.data.rank == 0 else {}
        for metric in self._untried.values():
            wrap(type(metric), "update_state", noted)

    @property
    def is_pending(self) -> bool:
        """True while there are metrics to try."""
        return bool(self._untried)

    def note(self, metric: keras.metrics.Metric, arguments: tuple, keywords: dict[str, Any]) -> None:
        """In a step, keeps what a metric is given, if it has yet to be tried."""
        if id(metric) not in self._untried:
            return
        if any(isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)) for leaf in tree.flatten((arguments, keywords))):
            del self._untried[id(metric)]
            return
        if id(metric) not in self._updates:
            self._updates[id(metric)] = Update(*tree.map_structure(holder, (arguments, keywords)))
        places, given = tree.flatten(tuple(self._updates[id(metric)])), tree.flatten((arguments, keywords))
        for place, value in zip(places, given, strict=True):
            if isinstance(place, tf.Variable):
                place.assign(value)

    def compare(self) -> None:
        """Outside of a step, tries the metrics of which two rows or more have been noted, and warns of those it finds.

        A metric that cannot be tried outside of a step, or is given rows that are not dense, is left.
        """
        for number, update in list(self._updates.items()):
            arguments, keywords = tree.map_structure(held, tuple(update))
            num_rows = next((len(leaf) for leaf in tree.flatten((arguments, keywords)) if np.ndim(leaf)), 0)
            if num_rows < 2:
                continue
            metric = self._untried.pop(number)
            del self._updates[number]
            said = complaint(self._alone, metric, Update(arguments, keywords), num_rows)
            if said:
                warnings.warn(f"keras-par: metric '{metric.name}' {said}.", stacklevel=2)


def noted(original):
    """Lets the probe of the step's model see what a metric is given."""

    def replacement(self, *args, **kwargs):
        step = steps.current()
        probe = None if step is None or step.compiled else step.binding.probe
        if probe is not None:
            probe.note(self, args, kwargs)
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


def held(place: Any) -> Any:
    return place.numpy() if isinstance(place, tf.Variable) else place


def complaint(alone: Any, metric: keras.metrics.Metric, update: Update, num_rows: int) -> str | None:
    """What is wrong with a metric whose state is that of two halves of a batch, combined as ranks combine theirs."""
    before = [variable.numpy() for variable in metric.variables]
    half = num_rows // 2
    try:
        whole = state_after(alone, metric, update, slice(0, num_rows), num_rows)
        parts = [state_after(alone, metric, update, rows, num_rows) for rows in (slice(0, half), slice(half, num_rows))]
        names = [metrics.operation_of(metric, variable) for variable in metric.variables]
        begin = initial_state(metric)
        combined = [COMBINATIONS[name](*pair) for name, *pair in zip(names, *parts, strict=True)]
        combined = [v - b if n == "sum" else v for n, v, b in zip(names, combined, begin, strict=True)]
        ours, theirs = result_of(metric, combined), result_of(metric, whole)
    except Exception:  # code of the user's own, which may need to be in a graph
        return None
    finally:
        assign(metric, before)
    if alike(ours, theirs):
        return None
    better = [suited(pair, value) for *pair, value in zip(*parts, whole, strict=True)]
    seen = f"({shown(theirs)} in one process, {shown(ours)} here, of a batch in two halves)"
    if None in better:
        return (
            f"is another one on several ranks than in one process {seen}, because it looks across the rows of a batch, "
            "of which each rank has its own: keep sums over rows in its variables, and let result() make of them what "
            "it shows"
        )
    advice = {variable.name: name for variable, name in zip(metric.variables, better, strict=True)}
    return (
        f"is another one on several ranks than in one process {seen}, because its variables are no sums over rows: say "
        f"how the ranks' are combined, as by metric.across_ranks = {advice}"
    )


def state_after(
    alone: Any, metric: keras.metrics.Metric, update: Update, rows: slice, num_rows: int
) -> list[np.ndarray]:
    """The metric's variables after these rows of a batch, as on a rank that has them."""
    arguments, keywords = tree.map_structure(
        lambda leaf: leaf[rows] if np.ndim(leaf) and len(leaf) == num_rows else leaf, tuple(update)
    )
    metric.reset_state()
    with steps.Step(alone, rows.stop - rows.start, num_rows, thin=False).current():
        metric.update_state(*arguments, **keywords)
    return [variable.numpy() for variable in metric.variables]


def initial_state(metric: keras.metrics.Metric) -> list[np.ndarray]:
    """What every rank but the first begins from, so that of sums it counts once."""
    metric.reset_state()
    return [variable.numpy() for variable in metric.variables]


class LoneBinding:
    """A binding for a step without other ranks."""

    data = SoloCommunicator()
    probe = None

    def __init__(self, binding: Binding):
        self._binding = binding
        self.options, self.kinds_of_losses = binding.options, binding.kinds_of_losses
        self.numbers = binding.numbers

    @property
    def custom_loss(self):
        return self._binding.custom_loss


def result_of(metric: keras.metrics.Metric, state: Sequence[np.ndarray]) -> list[np.ndarray]:
    assign(metric, state)
    return [keras.ops.convert_to_numpy(leaf) for leaf in tree.flatten(metric.result())]


def assign(metric: keras.metrics.Metric, state: Sequence[np.ndarray]) -> None:
    for variable, value in zip(metric.variables, state, strict=True):
        variable.assign(value)


def alike(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    return all(np.allclose(a, b, RELATIVE, ABSOLUTE, equal_nan=True) for a, b in zip(ours, theirs, strict=True))


def suited(parts: list, whole: np.ndarray) -> str | None:
    """A combination that makes the whole of its two parts, None if there is none."""
    return next((name for name, combine in COMBINATIONS.items() if alike([combine(*parts)], [whole])), None)


def shown(result: list[np.ndarray]) -> str:
    return ", ".join(f"{float(np.ravel(leaf)[0]):.4g}" if np.size(leaf) == 1 else "..." for leaf in result[:3])
