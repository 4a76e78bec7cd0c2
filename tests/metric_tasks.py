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


class Confusion(keras.metrics.Metric):
    """Counts of outputs above a limit by their column; counts begin at 1, and the limit is a variable, too."""

    def __init__(self, name="confusion"):
        super().__init__(name=name)
        self.limit = self.add_variable((), keras.initializers.Constant(0.1), name="limit")
        self.counts = self.add_variable((2, 3), "ones", name="counts")

    def update_state(self, y_true, y_pred, sample_weight=None):
        above = ops.cast(y_pred > self.limit, self.dtype)
        self.counts.assign_add(ops.stack([ops.sum(above, 0), ops.sum(1 - above, 0)]))

    def result(self):
        return self.counts[0, 0] / ops.sum(self.counts)

    def reset_state(self):
        self.counts.assign(ops.ones((2, 3), self.counts.dtype))


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


class States(keras.callbacks.Callback):
    """Keeps what users can read of the metrics: their variables and results."""

    def __init__(self):
        super().__init__()
        self.seen: list[dict] = []

    def note(self, when: str):
        variables = [np.array(variable) for metric in self.model.metrics for variable in metric.variables]
        results = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        self.seen.append({"when": when, "variables": variables, "results": results})

    def on_epoch_end(self, epoch, logs=None):
        self.note(f"epoch {epoch}")

    def on_test_end(self, logs=None):
        self.note("test end")


class EachStep(States):
    """The same after each step; it resets the metrics once within an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        self.note(f"step {batch}")
        if batch == 1:
            self.model.reset_metrics()


class Resetting(keras.Model):
    """A model whose step shows a metric of the newest batch only."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.newest = Positives("newest")

    def train_step(self, data):
        x, y = data
        self.newest.reset_state()
        self.newest.update_state(y, self(x))
        return super().train_step(data)


STATES = ("epochs", "each step", "reset in the step", "several steps", "batches")


def states(which: str, distributed: bool) -> list[dict]:
    """What is seen of the metrics in and after `fit`, `evaluate` and the methods for single batches."""
    x, _ = rows(37)
    x = x.astype("float64")
    y = x[:, :3] ** 2
    seed(distributed)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        with strategy_scope(distributed):
            inputs = keras.Input((8,))
            kind = Resetting if which == "reset in the step" else keras.Model
            model = kind(inputs, keras.layers.Dense(3)(inputs))
            metrics = [Confusion(), keras.metrics.MeanAbsoluteError(), Largest(peak="max"), Positives()]
            several = {"steps_per_execution": 2} if which == "several steps" else {}
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=metrics, **several)
        callback = EachStep() if which in ("each step", "reset in the step") else States()
        callback.set_model(model)
        if which == "batches":
            model.train_on_batch(x[:8], y[:8])
            for first in (8, 16, 24):
                logs = model.train_on_batch(x[first : first + 8], y[first : first + 8], return_dict=True)
                callback.note(f"train_on_batch {sorted((name, float(value)) for name, value in logs.items())[0][0]}")
            model.test_on_batch(x[:7], y[:7])
            callback.note("test_on_batch")
            model.reset_metrics()
            callback.note("reset")
            model.test_on_batch(x[:7], y[:7])
            callback.note("test_on_batch again")
            return callback.seen
        validation = {"validation_data": (x[:11], y[:11]), "validation_batch_size": 4}
        given = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, "callbacks": [callback]}
        model.fit(x, y, **given, **validation)
        model.fit(x, y, **given)
        model.evaluate(x, y, batch_size=16, verbose=0)
        callback.note("evaluate")
        return callback.seen
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
