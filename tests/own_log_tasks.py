"""Training and test steps that return numbers of their own, and what callbacks are given of these."""

import contextlib
import io
import warnings
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.tasks import seed, strategy_scope

STEPS = 3  # of an epoch


class OwnLogs(keras.Model):
    """Steps as tutorials have them; of the numbers that they return Keras knows names at most.

    Args:
        kind: "mean", or "sum" for losses that are added up.
        tracked: names of numbers that are kept by metrics, too.
    """

    def __init__(self, kind: str, tracked: tuple[str, ...], **made):
        super().__init__(**made)
        self.kind, self.trackers = kind, {name: keras.metrics.Mean(name=name) for name in tracked}

    def loss_of(self, x, y):
        outputs = self(x, training=True)
        error = tf.reduce_mean(tf.square(outputs - tf.cast(y, outputs.dtype)), -1)
        return tf.reduce_sum(error) if self.kind == "sum" else tf.reduce_mean(error)

    def logs(self, loss):
        for tracker in self.trackers.values():
            tracker.update_state(loss)
        results = {name: tracker.result() for name, tracker in self.trackers.items()}
        renamed = {"of_" + name: result for name, result in results.items()}
        return {"loss": loss, **results, **renamed, "nested": {"loss": 2 * loss}, "none": None}

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*batch[:2])
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logs(loss)

    def test_step(self, batch):
        return self.logs(self.loss_of(*batch[:2]))


def flat(logs: dict) -> dict[str, float]:
    """As a test can compare it: dicts within are taken apart, and None is -1."""
    found = {}
    for name, value in logs.items():
        inner = flat(value) if isinstance(value, dict) else {"": -1.0 if value is None else float(value)}
        found |= {name + key: each for key, each in inner.items()}
    return found


class Noting(keras.callbacks.Callback):
    """What it is given of batches, of epochs and of an evaluation."""

    def __init__(self):
        super().__init__()
        self.seen: list[tuple[str, dict]] = []

    def note(self, when: str, logs) -> None:
        self.seen.append((when, flat(logs or {})))

    def on_train_batch_end(self, batch, logs=None):
        self.note("batch", logs)

    def on_test_batch_end(self, batch, logs=None):
        self.note("test batch", logs)

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch", logs)


def fit(kind: str, tracked: tuple[str, ...], compiled: str | None, distributed: bool, callbacks: list) -> tuple:
    """A trained model, and its data, of whose batches ranks divide none evenly."""
    seed(distributed)
    keras.config.set_dtype_policy("float64")
    random = np.random.default_rng(3)
    x, y = random.normal(size=(26, 4)), random.normal(size=(26, 2))
    with strategy_scope(distributed):
        inputs = layers.Input((4,))
        model = OwnLogs(kind, tracked, inputs=inputs, outputs=layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(0.01), loss=compiled)
        model.fit(x, y, batch_size=9, epochs=2, validation_data=(x[:10], y[:10]), verbose=0, callbacks=callbacks)
    return model, x, y


def printed(kind: str, tracked: tuple[str, ...], is_read: bool) -> tuple[list[float], list[tuple[int, float]]]:
    """The losses that LossMonitor prints, and with their steps, from 0, those that ProgressBar shows, on rank 0.

    Args:
        kind: of loss.
        tracked: as in `OwnLogs`.
        is_read: True if a callback reads the logs of each step besides.
    """
    import keras_par as kp
    from keras_par.callbacks.progress_view import View

    shown: list[tuple[int, float]] = []
    noting = Noting()

    def show(view, step, logs, span):
        shown.append(
            (len([when for when, _ in noting.seen if when == "epoch"]) * STEPS + step - 1, float(logs["loss"]))
        )

    counting = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: noting.note("epoch", logs))
    callbacks = [kp.callbacks.LossMonitor(), kp.callbacks.ProgressBar(), noting if is_read else counting]
    with (
        contextlib.redirect_stdout(io.StringIO()) as output,
        mock.patch.object(View, "show", show),
    ):
        fit(kind, tracked, None, True, callbacks)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("epoch: ")]
    return [float(line.rpartition(" ")[2]) for line in lines], shown


def train(kind: str, tracked: tuple[str, ...], compiled: str | None, distributed: bool) -> list[tuple[str, dict]]:
    """What a callback is given in two epochs with validation, and what calls return; ranks divide no batch evenly."""
    noting = Noting()
    model, x, y = fit(kind, tracked, compiled, distributed, [noting])
    with strategy_scope(distributed):
        noting.note("train_on_batch", model.train_on_batch(x[:9], y[:9], return_dict=True))
        noting.note("test_on_batch", model.test_on_batch(x[:9], y[:9], return_dict=True))
        noting.note("evaluate", model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True))
    return noting.seen


class RootLogs(OwnLogs):
    """A step that returns what is neither a mean nor a sum over rows."""

    def logs(self, loss):
        return {"root": tf.sqrt(loss), **super().logs(loss)}


class MixedLogs(keras.Model):
    """Steps whose numbers are of several kinds: means, sums, constants, and some that are 0 in the first batch.

    Args:
        kind: of the loss: "mean", "sum", or "keras" for one of Keras's.
        is_function: True if the numbers come out of a function of TensorFlow's.
    """

    def __init__(self, kind: str, is_function: bool, **made):
        super().__init__(**made)
        self.kind = kind
        self.numbers = tf.function(self.numbers_of) if is_function else self.numbers_of
        self.trackers = {name: keras.metrics.Mean(name="kept_" + name) for name in ("loss", "mean", "large", "rate")}

    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss, logs = self.numbers(*batch[:2])
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.tracked({**logs, "loss": loss, "norm": tf.linalg.global_norm(gradients)})

    def test_step(self, batch):
        loss, logs = self.numbers(*batch[:2])
        return self.tracked({**logs, "loss": loss})

    def numbers_of(self, x, y):
        outputs = self(x, training=True)
        y = tf.cast(y, outputs.dtype)
        error = tf.reduce_mean(tf.square(outputs - y), -1)
        losses = {"mean": tf.reduce_mean(error), "sum": tf.reduce_sum(error)}
        loss = losses[self.kind] if self.kind in losses else self.compute_loss(x, y, outputs)
        is_large = tf.abs(y[:, 0]) > 50.0  # in no row of the first batch
        logs = {
            **losses,
            "rate": self.optimizer.learning_rate,
            "half": 0.5,
            "rows": tf.shape(x)[0],
            "large": tf.reduce_mean(tf.cast(is_large, tf.float64)),
            "number": {"large": tf.reduce_sum(tf.cast(is_large, tf.int32))},
        }
        return loss, logs

    def tracked(self, logs):
        for name, tracker in self.trackers.items():
            tracker.update_state(logs[name])
        return logs | {"kept_" + name: tracker.result() for name, tracker in self.trackers.items()}


def said_of_roots(is_test: bool) -> list[str]:
    """What rank 0 is warned of."""
    seed(distributed=True)
    x = np.random.default_rng(3).normal(size=(24, 4)) * np.arange(24)[:, np.newaxis]  # parts of a batch differ
    with strategy_scope(distributed=True), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        inputs = layers.Input((4,))
        model = RootLogs("mean", ("kept",), inputs=inputs, outputs=layers.Dense(2)(inputs))
        model.compile("sgd")
        if is_test:
            model.evaluate(x, x[:, :2], batch_size=8, verbose=0)
        else:
            model.fit(x, x[:, :2], batch_size=8, verbose=0)
    return [text for each in said if "neither a mean nor a sum" in (text := str(each.message))]


def train_mixed(kind: str, is_function: bool, evaluates_first: bool, distributed: bool, custom_loss: str) -> dict:
    """What a callback is given, what calls return, and the weights."""
    seed(distributed)
    keras.config.set_dtype_policy("float64")
    random = np.random.default_rng(3)
    x, y = random.normal(size=(26, 4)), random.normal(size=(26, 2))
    y[12:20:3] += 100.0
    noting = Noting()
    options = {"custom_loss": custom_loss} if distributed else {}
    with strategy_scope(distributed, **options):
        inputs = layers.Input((4,))
        model = MixedLogs(kind, is_function, inputs=inputs, outputs=layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(1e-4), loss="mse" if kind == "keras" else None)
        if evaluates_first:
            noting.note("evaluate", model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True))
        data = {"batch_size": 9, "shuffle": False, "validation_data": (x[:10], y[:10])}
        model.fit(x, y, epochs=2, verbose=0, callbacks=[noting], **data)
        noting.note("evaluate", model.evaluate(x, y, batch_size=9, verbose=0, return_dict=True))
        noting.note("train_on_batch", model.train_on_batch(x[12:21], y[12:21], return_dict=True))
    return {"seen": noting.seen, "weights": model.get_weights()}


class Habits(keras.Model):
    """A step with what steps do besides: numbers of other types, branches, functions, changes, Python's own state.

    Args:
        habit: the name of the method that makes logs.
        kind: of the loss, "sum" or "keras".
    """

    def __init__(self, habit: str, kind: str, **made):
        super().__init__(**made)
        self.habit, self.kind = habit, kind
        self.kept, self.other = keras.metrics.Mean(), keras.metrics.Mean()
        self.changed = tf.Variable(3.0, trainable=False)
        self.calls, self.seen = 0, []
        self.called = []

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = tf.reduce_sum(tf.square(outputs - y)) if self.kind == "sum" else self.compute_loss(x, y, outputs)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss, **getattr(self, self.habit)(x, y, loss)}

    def test_step(self, batch):
        return getattr(self, self.habit)(*batch, tf.reduce_sum(tf.square(batch[0])))

    def a_variable(self, x, y, loss):
        return {"number": self.changed}

    def a_branch(self, x, y, loss):
        tf.cond(loss > 0.0, lambda: self.kept.update_state(tf.reduce_mean(x)), lambda: self.kept.update_state(0.0))
        return {"number": self.kept.result()}

    def an_integer(self, x, y, loss):
        self.kept.update_state(tf.math.count_nonzero(x[:, 0] > 0.0))
        return {"number": self.kept.result()}

    def rows(self, x, y, loss):
        self.kept.update_state(tf.shape(x)[0])
        return {"number": self.kept.result(), "rows": tf.shape(x)[0]}

    @tf.function
    def function(self, x):
        self.kept.update_state(tf.reduce_mean(x))

    def without_names(self, x, y, loss):
        self.function(x)
        self.function(x + 1.0)
        self.other.update_state(tf.reduce_sum(tf.abs(x)))
        return {"number": self.kept.result(), "other": self.other.result()}

    def a_change(self, x, y, loss):
        with tf.control_dependencies([self.changed.assign_add(1.0)]):
            return {"number": tf.reduce_mean(x)}

    def python(self, x, y, loss):
        def note(value):
            self.called.append(1)
            return value

        return {"number": tf.numpy_function(note, [tf.reduce_mean(x)], tf.float32)}

    def attributes(self, x, y, loss):
        self.calls += 1
        self.seen.append(x)
        return {"number": tf.reduce_mean(x), "calls": float(self.calls)}

    def sixteen_bits(self, x, y, loss):
        small = tf.cast(x, tf.bfloat16)
        return {f"b{k}": tf.cast(tf.reduce_mean(tf.abs(small * k)), tf.float32) for k in range(1, 6)}


def with_habit(habit: str, kind: str, is_eager: bool, distributed: bool) -> dict:
    """Logs, weights and what else a training and a test have left, and what was said of numbers."""
    seed(distributed)
    x = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
    noting = Noting()
    with strategy_scope(distributed), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        inputs = layers.Input((4,))
        model = Habits(habit, kind, inputs=inputs, outputs=layers.Dense(2)(inputs))
        model.compile(keras.optimizers.SGD(1e-3), loss="mse", run_eagerly=is_eager)
        model.fit(x, x[:, :2], batch_size=8, shuffle=False, epochs=2, verbose=0, callbacks=[noting])
        noting.note("evaluate", model.evaluate(x, x[:, :2], batch_size=8, verbose=0, return_dict=True))
    return {
        "seen": noting.seen,
        "weights": model.get_weights(),
        "left": [model.calls if is_eager else 0, len(model.seen) if is_eager else 0, float(model.changed.numpy())],
        "called": len(model.called),
        "said": [text for each in said if "neither a mean nor a sum" in (text := str(each.message))],
    }
