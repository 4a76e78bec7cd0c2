"""Losses as users write them that look across the rows of a batch, and layers that do: in one process, and on ranks.

Everything is in float64, where a training that is one process's is 1e-12 from it at most.
"""

import functools
import logging
import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cases import in_dtype
from tests.tasks import seed, strategy_scope

ROWS, BATCH_SIZE = 22, 8  # a last batch of 6, which 4 ranks do not divide


def rmse(y_true, y_pred):
    return ops.sqrt(ops.mean(ops.square(y_true - y_pred)))


def squared_sum(y_true, y_pred):
    return ops.sum(ops.square(y_true - y_pred))


def mean_of_rows(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred))


def each_row(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred), axis=-1)


def concordance(y_true, y_pred):
    """1 - the concordance correlation coefficient."""
    mean_true, mean_pred = ops.mean(y_true), ops.mean(y_pred)
    covariance = ops.mean((y_true - mean_true) * (y_pred - mean_pred))
    return 1 - 2 * covariance / (ops.var(y_true) + ops.var(y_pred) + (mean_true - mean_pred) ** 2)


def cox(y_true, y_pred):
    """Of the proportional hazards model; the first target is the time, the second says if there was an event."""
    time, event, risk = y_true[:, 0], ops.cast(y_true[:, 1] > 0, y_pred.dtype), y_pred[:, 0]
    at_risk = ops.cast(time[None, :] >= time[:, None], risk.dtype)
    return -ops.sum(event * (risk - ops.log(ops.sum(at_risk * ops.exp(risk)[None, :], axis=1)))) / ops.sum(event + 1e-3)


def pairwise_ranking(y_true, y_pred):
    is_above = ops.cast(y_true[:, None, 0] > y_true[None, :, 0], y_pred.dtype)
    return ops.mean(is_above * ops.softplus(y_pred[None, :, 0] - y_pred[:, None, 0]))


def hardest(y_true, y_pred):
    values, _ = ops.top_k(ops.mean(ops.square(y_true - y_pred), axis=-1), 3)
    return ops.mean(values)


def balanced(y_true, y_pred):
    """Weighs rows by how many of their sign the batch has."""
    sign = ops.cast(y_true[:, 0] > 0.4, y_pred.dtype)
    share = ops.mean(sign)
    weights = sign / (share + 0.1) + (1 - sign) / (1.1 - share)
    return weights * ops.mean(ops.square(y_true - y_pred), axis=-1)


class Circular(keras.losses.Loss):
    """Each row against the next one."""

    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - ops.roll(y_pred, 1, axis=0)), axis=-1)


def binary(y_true, y_pred):
    return ops.cast(y_true > 0, y_pred.dtype), ops.sigmoid(y_pred)


# name: what `compile` is given.
LOSSES = {
    "rmse": rmse,
    "sum": squared_sum,
    "mean": mean_of_rows,
    "each row": each_row,
    "concordance": concordance,
    "cox": cox,
    "pairwise ranking": pairwise_ranking,
    "hardest rows": hardest,
    "class balanced": balanced,
    "subclass": Circular,
    "subclass that is summed": lambda: Circular(reduction="sum"),
    "mean that is summed": lambda: summed(mean_of_rows),
    "dice": lambda: on_signs(keras.losses.Dice()),
    "tversky": lambda: on_signs(keras.losses.Tversky(alpha=0.3)),
    "dice of each row": lambda: on_signs(keras.losses.Dice(axis=1)),
    "circle": keras.losses.Circle,
}
MAKERS = ("subclass", "subclass that is summed", "mean that is summed", "dice", "tversky", "dice of each row", "circle")
ACROSS = ("rmse", "concordance", "cox", "pairwise ranking", "hardest rows", "class balanced", "subclass", "circle")


def summed(function):
    class Summed(keras.losses.Loss):
        def call(self, y_true, y_pred):
            return function(y_true, y_pred)

    return Summed(reduction="sum")


def on_signs(loss: keras.losses.Loss) -> keras.losses.Loss:
    """A loss of Keras's whose targets are made of the data's signs."""
    original = loss.call
    loss.call = lambda y_true, y_pred: original(*binary(y_true, y_pred))
    return loss


def data(name: str):
    random = np.random.default_rng(5)
    x = random.normal(size=[ROWS, 6])
    y = x[:, :4] * 0.5 + random.normal(size=[ROWS, 4])
    return (x, np.arange(ROWS) % 3) if name == "circle" else (x, y)


def network(*more) -> keras.Model:
    model = keras.Sequential([layers.Input([6]), layers.Dense(8, "tanh"), *more, layers.Dense(4)])
    return model


def loss_of(name: str):
    return LOSSES[name]() if name in MAKERS else LOSSES[name]


class Adding(layers.Layer):
    """Adds to the loss: a number of each row, a sum over rows, a mean, or means of the batch."""

    def __init__(self, what: str):
        super().__init__()
        self.what = what

    def call(self, x):
        squares = ops.square(x)
        self.add_loss(
            {
                "each row": lambda: ops.mean(squares, axis=-1),
                "sum": lambda: ops.sum(squares),
                "mean": lambda: ops.mean(squares),
                "means of columns": lambda: ops.mean(squares, axis=0),
            }[self.what]()
            * 0.1
        )
        return x


class Summing(keras.Model):
    """A training step whose loss is a sum over rows."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.sum(ops.square(y - self(x, training=True))) * 0.1
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def trained(name: str, distributed: bool, weighted: bool = False, **compiled) -> dict:
    """Weights, logs and a test's result of a training with a loss of the table, or of what is added to it.

    "each" has an output, on layers of its own, for each loss of the table.
    """
    kind, _, what = name.partition(": ")
    seed(distributed)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("keras_par").addHandler(handler)
    try:
        with in_dtype("float64"), strategy_scope(distributed), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x, y = data(name)
            if kind == "added":
                model = network(Adding(what))
            elif kind == "activity":
                model = network(layers.Dense(5, activity_regularizer=what))
            elif kind == "step":
                outputs = network()
                model = Summing(outputs.inputs, outputs.outputs)
            elif kind == "outputs":
                inputs = layers.Input([6])
                shared = layers.Dense(8, "tanh")(inputs)
                model = keras.Model(inputs, [layers.Dense(4, name="a")(shared), layers.Dense(4, name="b")(shared)])
                x, y = x, [y, y**2]
            elif kind == "each":
                inputs = layers.Input([6])
                inner = {each: layers.Dense(8, "tanh")(inputs) for each in LOSSES}
                named = {each.replace(" ", "_"): each for each in LOSSES}
                outputs = {each: layers.Dense(4, name=each)(inner[named[each]]) for each in named}
                outputs["circle"] = layers.UnitNormalization()(outputs["circle"])  # its loss would grow without end
                model = keras.Model(inputs, outputs)
                y = {each: data(named[each])[1] for each in named}
            else:
                model = network()
            losses = {"outputs": ["mse", rmse], "each": {each.replace(" ", "_"): loss_of(each) for each in LOSSES}}
            loss = losses.get(kind) or (loss_of(name) if name in LOSSES else "mse")
            model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, **compiled)
            weighting = {"sample_weight": np.linspace(0.5, 2, ROWS)} if weighted else {}
            fitted = model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0, **weighting)
            weights = [np.asarray(weight) for weight in model.get_weights()]
            tested = {} if kind == "step" else model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
            if kind == "each":  # nor is a NaN hidden
                model.set_weights([weight * np.nan for weight in weights])
                broken = model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
                assert np.isnan([*broken.values()]).all(), broken
    finally:
        logging.getLogger("keras_par").removeHandler(handler)
    return {
        "weights": weights,
        "logs": {**fitted.history, **{f"test {key}": [value] for key, value in tested.items()}},
        "said": [each for each in said + [str(each.message) for each in caught] if "keras-par" in each],
        "kinds": kinds(model) if distributed and kind == "each" else {},
    }


def kinds(model: keras.Model) -> dict[str, str]:
    """What a rank takes the losses of the table for, each of which a model has in their order."""
    from keras_par.keras_patches.models.binding import bound
    from keras_par.keras_patches.step.batch_loss import kind_of

    losses = model._compile_loss._flat_losses
    return {
        name: kind_of(each.loss, bound(model).kinds_of_losses, 2) for name, each in zip(LOSSES, losses, strict=True)
    }


class Deviation(layers.Layer):
    """Appends how much the rows of the batch differ, as StyleGAN's discriminator does."""

    def call(self, x):
        spread = ops.mean(ops.std(x, axis=0))
        return ops.concatenate([x, ops.broadcast_to(spread, [ops.shape(x)[0], 1])], axis=-1)


class Centered(layers.Layer):
    """Takes the batch's mean away."""

    def call(self, x):
        return x - ops.mean(x, axis=0)


class Sampling(layers.Layer):
    """Draws numbers, also where it is not trained."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        return x + keras.random.normal(ops.shape(x), seed=self.seeds, dtype=x.dtype)


class Counting(layers.Layer):
    """Counts its calls."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


LAYERS = {
    "deviation": Deviation,
    "centered": Centered,
    "sampling": Sampling,
    "dropout": lambda: layers.Dropout(0.5),
    "batch normalization": layers.BatchNormalization,
    "attention over features": lambda: layers.Lambda(lambda x: ops.softmax(x, axis=-1) * x),
    "counting": Counting,
}


def said_of_layer(name: str) -> dict:
    """What a rank warns of that trains with a layer of the table, and how often the layer says it was called."""
    seed(True)
    with strategy_scope(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x, y = data(name)
        layer = LAYERS[name]()
        model = network(layer)
        model.compile("sgd", "mse")
        model.fit(x, y, batch_size=2 * BATCH_SIZE, epochs=2, shuffle=False, verbose=0)
    found = [str(each.message) for each in caught if "keras-par" in str(each.message)]
    return {"said": found, "calls": float(layer.calls.value) if name == "counting" else None}


def may_mix() -> dict[str, bool]:
    """Which models are looked at for layers that mix rows."""
    from keras_par.keras_patches.trainer.row_probe import may_mix_rows

    dense, inputs = keras.layers.Dense, keras.Input((8,))

    class Centered:
        def __call__(self, x):
            return x - keras.ops.mean(x, 0)

    class Step(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    class Call(keras.Model):
        def call(self, x):
            return x - keras.ops.mean(x, 0)

    def stacked(*layers):
        return keras.Sequential([inputs, *layers, dense(3)])

    patched = stacked()
    patched.layers[0].call = lambda x: x - keras.ops.mean(x, 0)
    models = {
        "Keras's layers": stacked(dense(4, "relu"), keras.layers.BatchNormalization(), keras.layers.Softmax()),
        "Keras's recurrent layers": keras.Sequential(
            [keras.Input((5, 3)), keras.layers.Bidirectional(keras.layers.LSTM(4)), dense(2)]
        ),
        "MobileNet": keras.applications.MobileNetV2((32, 32, 3), weights=None),
        "own step": Step([inputs, dense(3)]),
        "own call": Call(),
        "lambda": stacked(keras.layers.Lambda(lambda x: x - keras.ops.mean(x, 0))),
        "own activation": stacked(dense(4, activation=lambda x: x - keras.ops.mean(x, 0))),
        "part of a function": stacked(dense(4, activation=functools.partial(keras.ops.softmax, axis=0))),
        "own object": stacked(dense(4, activation=Centered())),
        "along rows, from behind": stacked(keras.layers.Softmax(axis=-2)),
        "operation": keras.Model(inputs, inputs - keras.ops.mean(inputs, 0, keepdims=True)),
        "along rows": stacked(keras.layers.Softmax(axis=(0,))),
        "patched": patched,
    }
    for model in models.values():
        model.compile("sgd", "mse")
    return {name: may_mix_rows(model) for name, model in models.items()}
