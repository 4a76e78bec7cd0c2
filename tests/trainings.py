"""The table of "N ranks end where one process ends": what a training is made of, and how it is run.

Each axis has some values, of which a training has one each; `tests/test_one_process.py` runs as many as it takes for
all pairs of values to meet. A value that is added here needs nothing else. All is computed in float64, so that what
differs is no rounding. Nothing here imports keras_par but where ranks set their strategy.
"""

import contextlib
import warnings
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

from tests import random_models
from tests.cases import in_dtype

# A kind of rows, and the parts that a model of them has one after another: (name, units, activation).
MODELS: dict[str, tuple[str, list[tuple[str, int, str]]]] = {
    "dense": ("vectors", [("dense", 8, "relu"), ("residual", 4, "tanh"), ("fold", 4, "relu")]),
    "branches": ("vectors", [("branches", 4, "relu"), ("gated", 8, "tanh"), ("rms", 8, "relu")]),
    "own layer": ("vectors", [("regularized", 8, "tanh"), ("own", 8, "relu"), ("norm", 8, "relu")]),
    "normalized": ("vectors", [("dense", 8, "tanh"), ("batch-norm", 8, "relu"), ("frozen", 8, "tanh")]),
    "attention": ("tokens", [("causal", 8, "relu"), ("sequence-norm", 8, "relu"), ("sequence-dense", 4, "relu")]),
    "grouped attention": ("tokens", [("grouped", 8, "relu"), ("conv1d", 4, "tanh"), ("sequence-own", 8, "relu")]),
    "recurrent": ("tokens", [("recurrent", 4, "tanh"), ("permute", 4, "relu")]),
    "convolution": ("images", [("conv2d", 4, "relu"), ("image-norm", 4, "relu"), ("pool", 4, "relu")]),
    "depthwise": ("images", [("strided", 8, "relu"), ("depthwise", 4, "relu"), ("group-norm", 4, "relu")]),
    "separable": ("images", [("separable", 4, "relu"), ("transposed", 4, "relu")]),
    "two outputs": ("vectors", [("dense", 8, "tanh"), ("two outputs", 4, "relu")]),
}
# Epsilons are far above rounding, which is blown up to whole steps where a gradient is zero by symmetry.
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: optimizers.SGD(0.05),
    "momentum, clipped values": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.02),
    "adam, clipped norm": lambda: optimizers.Adam(1e-2, epsilon=1e-2, global_clipnorm=0.5),
    "adamw, averaged": lambda: optimizers.AdamW(
        1e-2, epsilon=1e-2, weight_decay=0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "rmsprop, each norm": lambda: optimizers.RMSprop(1e-2, momentum=0.5, centered=True, epsilon=1e-2, clipnorm=0.1),
    "adam, accumulating": lambda: optimizers.Adam(1e-2, epsilon=1e-2, gradient_accumulation_steps=3),
    "accumulating, clipped norm": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2, global_clipnorm=0.3),
    "scaled loss, each norm": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.05, momentum=0.9, clipnorm=0.1), initial_scale=8.0
    ),
    "scaled loss, accumulating": lambda: optimizers.LossScaleOptimizer(
        optimizers.Adam(1e-2, epsilon=1e-2, gradient_accumulation_steps=2), initial_scale=8.0
    ),
    "schedule": lambda: optimizers.SGD(
        optimizers.schedules.CosineDecay(0.0, 8, warmup_target=0.02, warmup_steps=2), weight_decay=0.05
    ),
    "adagrad": lambda: optimizers.Adagrad(0.05),
    "adadelta": lambda: optimizers.Adadelta(1.0, epsilon=1e-2),
    "adamax": lambda: optimizers.Adamax(1e-2, epsilon=1e-2),
    "nadam": lambda: optimizers.Nadam(1e-2, epsilon=1e-2),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "adafactor": lambda: optimizers.Adafactor(1e-2, epsilon_1=1e-4),
    "lamb": lambda: optimizers.Lamb(1e-2, epsilon=1e-2),
    "muon": lambda: optimizers.Muon(1e-2),
}
REDUCTIONS = {"mean": "sum_over_batch_size", "sum": "sum", "mean of weights": "mean_with_sample_weight", "rows": None}
NUM_RANKS = {"data, 3 ranks": 3, "mesh 2x2": 4, "zero 2 beside replicas": 4}  # 2 elsewhere
MESHES = {"mesh 1x2": (1, 2), "mesh 2x1": (2, 1), "mesh 2x2": (2, 2)}
DATA_PARALLEL: dict[str, dict[str, Any]] = {
    "data": {},
    "data, 3 ranks": {},
    "data, small buckets": {"fusion_mb": 0.0005},
    "zero 1": {"zero": 1, "zero_min_kb": 0},
    "zero 2": {"zero": 2, "zero_min_kb": 0},
    "zero 3": {"zero": 3, "zero_min_kb": 0},
    "zero 2 beside replicas": {"zero": 2, "zero_min_kb": 0, "zero_ranks": 2},
}
# How many rows there are, and how many a batch has.
ROWS = {
    "3 left over": (27, 8),
    "1 left over": (25, 8),
    "even": (24, 8),
    "odd batches": (27, 13),
    "batches of 1": (5, 1),
}
AXES: dict[str, list[str]] = {
    "strategy": [*DATA_PARALLEL, "Keras's own", *MESHES],
    "model": list(MODELS),
    "optimizer": list(OPTIMIZERS),
    "loss": list(REDUCTIONS),
    "weights": ["none", "of rows", "of classes"],
    "input": [
        "arrays",
        "shuffled arrays",
        "dataset",
        "fixed shapes",
        "unknown length",
        "PyDataset",
        "generator",
        "repeated dataset",
    ],
    "rows": list(ROWS),
    "step": ["Keras's", "own", "clipping", "hand-made"],
    "execution": ["graph", "eager", "two steps", "XLA"],
    "made": ["in scope", "before the strategy", "loaded weights"],
    "also": ["nothing", "validation", "evaluation", "predictions"],
}
TOKENS = [name for name, (kind, _) in MODELS.items() if kind == "tokens"]
CLIPPING = [name for name in OPTIMIZERS if ("clipped" in name or "norm" in name) and "accumulating" not in name]
LINEAR = ("sgd", "momentum, clipped values", "accumulating, clipped norm", "scaled loss, each norm", "schedule")
SQUARING = [name for name in OPTIMIZERS if name not in LINEAR]
# What does not go together: values of several axes.
UNFIT: list[dict[str, Any]] = [
    # Plain Keras takes the norm of the single rows of a table's gradient, before equal rows are added.
    {"model": TOKENS, "optimizer": CLIPPING},
    # Equal rows of a table are squared one by one by one process, and added before where these divide it.
    {"model": TOKENS, "optimizer": SQUARING, "strategy": ["mesh 2x1", "mesh 2x2"]},
    {"model": TOKENS, "optimizer": SQUARING, "strategy": list(MESHES), "step": ["own", "clipping", "hand-made"]},
    # Optimizers of whole variables are given a divided table's gradient with equal rows added up.
    {"model": TOKENS, "optimizer": ["adafactor", "lamb", "muon"], "strategy": list(MESHES)},
    # Such a step uses no optimizer.
    {"step": ["hand-made"], "optimizer": [name for name in OPTIMIZERS if name != "sgd"]},
    # At the end of data of unknown length plain Keras counts a step too many, unless it is one of several.
    {"input": ["unknown length"], "execution": ["graph", "eager", "XLA"]},
    # A layout map is for what is made after it.
    {"strategy": list(MESHES), "made": ["before the strategy", "loaded weights"]},
    # XLA compiles neither collectives within a step nor steps of users' own; a strategy warns of it.
    {"execution": ["XLA"], "strategy": [*MESHES, "zero 3"]},
    {"execution": ["XLA"], "step": ["own", "clipping", "hand-made"]},
    {"execution": ["XLA"], "model": ["normalized", "convolution"]},
    # Keras takes weights of classes for one output, and not for generators.
    {"weights": ["of classes"], "model": ["two outputs"]},
    {"weights": ["of classes"], "input": ["generator"]},
    # Plain Keras cannot add a regularizer's number to the losses of rows.
    {"loss": ["rows"], "model": ["own layer"]},
]


class Own(keras.Model):
    """A functional model with a training step of its own, of one of several kinds."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs, sample_weight)
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        if self.kind == "clipping":
            gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(each) for each in gradients], 0.3)
        if self.kind == "hand-made":
            for variable, gradient in zip(variables, gradients, strict=True):
                variable.assign_sub(0.05 * tf.convert_to_tensor(gradient))
        else:
            self.optimizer.apply(gradients, variables)
        self._loss_tracker.update_state(loss, sample_weight=tf.shape(x)[0])
        return self.compute_metrics(x, y, outputs, sample_weight)


class Batches(keras.utils.PyDataset):
    """The batches of some arrays."""

    def __init__(self, parts: tuple, num_rows: int, size: int):
        super().__init__()
        self.parts, self.num_rows, self.size = parts, num_rows, size

    def __len__(self):
        return -(-self.num_rows // self.size)

    def __getitem__(self, index):
        return cut(self.parts, index * self.size, (index + 1) * self.size)


def cut(parts, begin: int, end: int):
    return keras.tree.map_structure(lambda part: part[begin:end], parts)


def endless(parts: tuple, num_rows: int, size: int):
    while True:
        for begin in range(0, num_rows, size):
            yield cut(parts, begin, begin + size)


def num_ranks(training: dict[str, Any]) -> int:
    return NUM_RANKS.get(training["strategy"], 2)


def architecture(training: dict[str, Any]) -> tuple[str, list]:
    """The kind of rows and the parts of a model, which is named in the table or told as they are."""
    model = training["model"]
    return MODELS[model] if isinstance(model, str) else model


def rows_of(training: dict[str, Any]) -> tuple[Any, Any]:
    kind, parts = architecture(training)
    x, y = random_models.rows(kind)
    return x, {"class": y, "value": x[:, :1] ** 2} if has_two_outputs(parts) else y


def has_two_outputs(parts) -> bool:
    return any(name == "two outputs" for name, *_ in parts)


def data_of(training: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fit` that are data."""
    num_rows, size = ROWS[training["rows"]]
    parts = cut(rows_of(training), 0, num_rows)
    if training["weights"] == "of rows":
        parts = (*parts, np.random.default_rng(2).uniform(0.5, 2.0, num_rows).astype("float32"))
    more = {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.7}} if training["weights"] == "of classes" else {}
    source = training["input"]
    if source in ("arrays", "shuffled arrays"):
        named = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
        return {**named, **more, "batch_size": size, "shuffle": source == "shuffled arrays"}
    if source == "PyDataset":
        return {"x": Batches(parts, num_rows, size), "shuffle": True, **more}
    if source == "generator":
        return {"x": endless(parts, num_rows, size), "steps_per_epoch": 3, **more}
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    if source == "repeated dataset":
        return {"x": dataset.repeat().batch(size), "steps_per_epoch": 4, **more}
    if source == "unknown length":
        return {"x": dataset.filter(lambda *_: True).batch(size), **more}
    dataset = dataset.shuffle(num_rows, seed=3)
    return {"x": dataset.batch(size, drop_remainder=source == "fixed shapes"), **more}


def model_of(training: dict[str, Any]) -> keras.Model:
    """The model, not compiled yet."""
    kind, parts = architecture(training)
    if has_two_outputs(parts):
        *parts, (_, units, activation) = parts
        plain = random_models.build(kind, parts)
        hidden = layers.Dense(units, activation)(plain.inputs[0])
        outputs = {"class": plain.outputs[0], "value": layers.Dense(1)(hidden)}
    else:
        plain = random_models.build(kind, parts)
        outputs = plain.outputs[0]
    if training["step"] == "Keras's":
        return keras.Model(plain.inputs[0], outputs)
    model = Own(plain.inputs[0], outputs)
    model.kind = training["step"]
    return model


def compiled(model: keras.Model, training: dict[str, Any]) -> keras.Model:
    reduction = REDUCTIONS[training["loss"]]
    loss: Any = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    # Accuracy would be decided by rounding where a normalization makes a row's outputs equal.
    metrics: Any = [keras.metrics.SparseCategoricalCrossentropy(from_logits=True)]
    weights = None
    if has_two_outputs(architecture(training)[1]):
        loss = {"class": loss, "value": keras.losses.MeanSquaredError(reduction=reduction)}
        metrics, weights = {"class": metrics, "value": ["mae"]}, {"class": 1.0, "value": 0.3}
    execution = training["execution"]
    model.compile(
        OPTIMIZERS[training["optimizer"]](),
        loss,
        loss_weights=weights,
        metrics=metrics,
        steps_per_execution=2 if execution == "two steps" else 1,
        run_eagerly=execution == "eager",
        jit_compile=execution == "XLA",
    )
    return model


def layout_of(training: dict[str, Any]) -> dict[str, tuple]:
    """What a layout map divides, by the whole paths of the variables: drawn, unless the training says what."""
    keras.utils.clear_session(free_memory=False)
    model = model_of(training)
    keras.utils.clear_session(free_memory=False)
    mesh = MESHES[training["strategy"]]
    if "choices" in training:
        return random_models.layout_of(model, mesh, training["choices"])
    draw = Random(training.get("seed", seed_of_layout(training)))
    divides = {axis for axis, size in zip(("batch", "model"), mesh, strict=True) if size > 1}
    layout: dict[str, tuple] = {}
    while not any(divides & set(axes) for axes in layout.values()):
        layout = random_models.layout_of(model, mesh, [draw.randrange(100) for _ in range(7)])
    return layout


def seed_of_layout(training: dict[str, Any]) -> int:
    """What the layout of a training is drawn by, unless the training says so."""
    return zlib.crc32(repr(sorted(training.items(), key=str)).encode())


def scope_of(training: dict[str, Any], distributed: bool):
    """The strategy's scope on ranks, nothing in the plain process."""
    if not distributed:
        return contextlib.nullcontext()
    import keras_par as kp

    name = training["strategy"]
    if name in DATA_PARALLEL:
        return kp.DataParallel(**DATA_PARALLEL[name]).scope()
    if name == "Keras's own":
        return keras.distribution.DataParallel().scope()
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(MESHES[name], ("batch", "model")))
    for path, axes in layout_of(training).items():
        layout_map[path] = axes
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch").scope()


def train(training: dict[str, Any], distributed: bool) -> dict:
    """Trains two epochs in float64; the weights, the logs, and what else the training asks for."""
    with in_dtype("float64"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data|.*use_ema", UserWarning)
        with contextlib.ExitStack() as stack:
            is_made_before = training["made"] == "before the strategy"
            if not is_made_before:
                stack.enter_context(scope_of(training, distributed))
            keras.utils.set_random_seed(seed_of(training, distributed))
            model = compiled(model_of(training), training)
            if is_made_before:
                stack.enter_context(scope_of(training, distributed))
            if training["made"] == "loaded weights":
                model.set_weights([weight * 0.9 for weight in model.get_weights()])
            return fitted(model, training)


def seed_of(training: dict[str, Any], distributed: bool) -> int:
    """The plain process's, which rank 0 has; others only where ranks make a part each of a weight."""
    if not distributed or training["strategy"] in (*MESHES, "zero 3"):
        return 5
    import keras_par as kp

    return 5 + kp.rank()


def fitted(model: keras.Model, training: dict[str, Any]) -> dict:
    x, y = rows_of(training)
    _, size = ROWS[training["rows"]]
    keras.utils.set_random_seed(11)  # of what is shuffled
    also = training["also"]
    extra = {"validation_data": cut((x, y), 0, 5), "validation_batch_size": 3} if also == "validation" else {}
    history = model.fit(**data_of(training), epochs=2, verbose=0, **extra).history
    state = [] if training["step"] == "hand-made" else model.optimizer.variables
    if training["strategy"] in MESHES:  # sums of steps' gradients add up along one axis, and are copies along the other
        state = [variable for variable in state if "gradient_accumulator" not in variable.name]
    found = {
        "weights": model.get_weights(),
        "slots": [(variable.name, np.asarray(variable.value)) for variable in state],
        "divided": [held(variable) < np.prod(variable.shape) for variable in state],
        "held": sum(map(held, [*model.variables, *state])),
        "logs": history,
        "evaluated": [],
        "predicted": [],
    }
    x, y = cut((x, y), 0, 11)
    if also == "evaluation":
        found["evaluated"] = model.evaluate(x, y, batch_size=size, verbose=0)
    if also == "predictions":
        found["predicted"] = keras.tree.flatten(model.predict(x, batch_size=size, verbose=0))
    return found


def held(variable) -> int:
    """Elements of a variable that this rank stores."""
    return int(np.prod(getattr(variable, "local_shape", tuple(variable.shape))))
