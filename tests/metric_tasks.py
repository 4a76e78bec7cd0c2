"""Metrics of users' own, whose state may be a sum over rows, something else, or need the whole batch at once."""

import warnings

import keras
import numpy as np
from keras import ops

from tests.cases import network, rows
from tests.tasks import seed, strategy_scope


class Positives(keras.metrics.Metric):
    """Counts, as Keras's guide does: its result is the variable itself."""

    def __init__(self, name="positives"):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(ops.sum(ops.cast(y_pred > 0, "float32")))

    def result(self):
        return self.count


class Largest(keras.metrics.Metric):
    """The largest output."""

    def __init__(self, name="largest", **said):
        super().__init__(name=name)
        self.across_ranks = said
        self.peak = self.add_variable((), "zeros", name="peak")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.peak.assign(ops.maximum(self.peak, ops.max(y_pred)))

    def result(self):
        return self.peak + 0.0


class Smoothed(keras.metrics.Metric):
    """A moving mean of the outputs, over the batches."""

    def __init__(self, name="smoothed", **said):
        super().__init__(name=name)
        self.across_ranks = said
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(0.9 * self.value + 0.1 * ops.mean(y_pred))

    def result(self):
        return self.value + 0.0


def r2(y_true, y_pred):
    """Looks across the batch: its mean is in every term."""
    spread = ops.sum(ops.square(y_true - ops.mean(y_true, 0)))
    return 1 - ops.sum(ops.square(y_true - y_pred)) / spread


def error_of_rows(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred), -1)


def mean_error(y_true, y_pred):
    """A mean over rows and outputs at once."""
    return ops.mean(ops.abs(y_true - y_pred))


METRICS = {
    "variable": lambda: Positives(),
    "maximum": lambda: Largest(),
    "maximum, said": lambda: Largest(peak="max"),
    "moving mean": lambda: Smoothed(),
    "moving mean, said": lambda: Smoothed(value="mean"),
    "unknown word": lambda: Largest(peak="largest"),
    "across the batch": lambda: r2,
    "of rows": lambda: error_of_rows,
    "mean": lambda: mean_error,
    "Keras's": lambda: keras.metrics.MeanAbsoluteError(),
    "correlation along rows": lambda: keras.metrics.PearsonCorrelation(axis=0),
    "concordance along rows": lambda: keras.metrics.ConcordanceCorrelation(axis=0),
    "cosine along rows": lambda: keras.metrics.CosineSimilarity(axis=0),
    "dice": lambda: keras.losses.Dice(),
}


def train(which: str, distributed: bool, **compiled) -> dict:
    """The metric's values in two epochs and an evaluation, and what was warned of."""
    x, _ = rows(60)
    y = x[:, :3] ** 2
    seed(distributed)
    with strategy_scope(distributed), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = network()
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[METRICS[which]()], **compiled)
        history = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0).history
        [_, value] = model.evaluate(x, y, batch_size=12, verbose=0)
    name = next(key for key in history if key != "loss")
    said = [str(each.message) for each in caught if "keras-par" in str(each.message)]
    return {"values": np.array([*history[name], value]), "said": said, "weights": model.get_weights()}
