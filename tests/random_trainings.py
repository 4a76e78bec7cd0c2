"""Trainings drawn at random: a model, how it is compiled and fitted, a strategy; run by one process and by ranks.

All is computed in float64, so that what differs is no rounding. Nothing here imports keras_par but where ranks set
their strategy.
"""

import contextlib
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import random_models
from tests.cases import in_dtype

# Adam's epsilon is far above rounding, which is blown up to whole steps where a gradient is zero by symmetry.
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05),
    "momentum, clipped values": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.02),
    "adam, clipped norm": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-2, global_clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(1e-2, epsilon=1e-2, weight_decay=0.1),
    "rmsprop, each norm": lambda: keras.optimizers.RMSprop(1e-2, epsilon=1e-2, clipnorm=0.1),
    "accumulating": lambda: keras.optimizers.Adam(1e-2, epsilon=1e-2, gradient_accumulation_steps=3),
    "ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "scaled loss": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=8.0),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.02, 8, warmup_steps=2)),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
}
CLIPPING = ("momentum, clipped values", "adam, clipped norm", "rmsprop, each norm")
SQUARING = ("adam, clipped norm", "adamw", "rmsprop, each norm", "accumulating", "adagrad")
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight", None)
INPUTS = ("arrays", "dataset", "unknown length", "PyDataset", "generator")
STEPS = ("Keras's", "own", "clipping", "hand-made")
MADE = ("in scope", "before the strategy", "loaded weights")
STRATEGIES = ("data", "data, small buckets", "data, Keras's own", "model (2, 1)", "model (1, 2)")
MESHES = {"model (2, 1)": (2, 1), "model (1, 2)": (1, 2)}
NUM_ROWS = 27


class Own(keras.Model):
    """A functional model with a training step of one of several kinds."""

    kind = "Keras's"

    def train_step(self, data):
        if self.kind == "Keras's":
            return super().train_step(data)
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


def data_of(drawn: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fit` that are data."""
    x, y = random_models.rows(drawn["kind"])
    weights = np.random.default_rng(2).uniform(0.5, 2.0, NUM_ROWS).astype("float32")
    parts = (x, y, weights) if drawn["weighted"] else (x, y)
    size = drawn["batch_size"]
    if drawn["input"] == "arrays":
        named = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
        return {**named, "batch_size": size, "shuffle": drawn["shuffle"]}
    if drawn["input"] == "PyDataset":
        return {"x": Batches(parts, size), "shuffle": drawn["shuffle"]}
    if drawn["input"] == "generator":
        return {"x": endless(parts, size), "steps_per_epoch": 3}
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    dataset = dataset.shuffle(NUM_ROWS, seed=3) if drawn["shuffle"] else dataset
    return {
        "x": dataset.filter(lambda *_: True).batch(size) if drawn["input"] == "unknown length" else dataset.batch(size)
    }


class Batches(keras.utils.PyDataset):
    """The batches of some arrays."""

    def __init__(self, parts: tuple, size: int):
        super().__init__()
        self.parts, self.size = parts, size

    def __len__(self):
        return -(-NUM_ROWS // self.size)

    def __getitem__(self, index):
        return tuple(part[index * self.size : (index + 1) * self.size] for part in self.parts)


def endless(parts: tuple, size: int):
    while True:
        for begin in range(0, NUM_ROWS, size):
            yield tuple(part[begin : begin + size] for part in parts)


def model_of(drawn: dict[str, Any]) -> keras.Model:
    """The model, not compiled yet."""
    plain = random_models.build(drawn["kind"], drawn["parts"])
    model = Own(plain.inputs, plain.outputs[0])
    model.kind = drawn["step"]
    return model


def compiled(model: keras.Model, drawn: dict[str, Any]) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=drawn["reduction"])
    options = {"steps_per_execution": drawn["steps_per_execution"], "run_eagerly": drawn["eager"]}
    # Accuracy would be decided by rounding where a normalization makes a row's outputs equal.
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[drawn["optimizer"]](), loss, metrics=[metric], **options)
    return model


def layout_of(drawn: dict[str, Any]) -> dict[str, tuple]:
    """What a layout map of the drawn strategy divides, by the whole paths of the variables."""
    keras.utils.clear_session(free_memory=False)
    model = random_models.build(drawn["kind"], drawn["parts"])
    keras.utils.clear_session(free_memory=False)
    return random_models.layout_of(model, MESHES[drawn["strategy"]], drawn["choices"])


def scope_of(drawn: dict[str, Any], layout: dict[str, tuple], distributed: bool):
    """The strategy's scope on ranks, nothing in the plain process."""
    if not distributed:
        return contextlib.nullcontext()
    import keras_par as kp

    name = drawn["strategy"]
    if name == "data":
        return kp.DataParallel().scope()
    if name == "data, small buckets":
        return kp.DataParallel(fusion_mb=0.0005).scope()
    if name == "data, Keras's own":
        return keras.distribution.DataParallel().scope()
    sizes = MESHES[name]
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(sizes, ("batch", "model")))
    for path, axes in layout.items():
        layout_map[path] = axes
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch").scope()


def train(drawn: dict[str, Any], distributed: bool) -> dict:
    """Trains two epochs in float64; the weights, the logs and an evaluation."""
    with in_dtype("float64"):
        return trained(drawn, distributed)


def trained(drawn: dict[str, Any], distributed: bool) -> dict:
    rank = 0
    if distributed:
        import keras_par as kp

        rank = kp.rank()
    divides = drawn["strategy"] in MESHES
    layout = layout_of(drawn) if divides else {}
    keras.utils.set_random_seed(5 + (0 if divides else rank))  # the ranks start from rank 0's state
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Your input ran out of data|.*use_ema", UserWarning)
        if drawn["made"] == "before the strategy":
            model = compiled(model_of(drawn), drawn)
            with scope_of(drawn, layout, distributed):
                return fitted(model, drawn)
        with scope_of(drawn, layout, distributed):
            model = compiled(model_of(drawn), drawn)
            if drawn["made"] == "loaded weights":
                model.set_weights([weight * 0.9 for weight in model.get_weights()])
            return fitted(model, drawn)


def fitted(model: keras.Model, drawn: dict[str, Any]) -> dict:
    x, y = random_models.rows(drawn["kind"])
    tf.random.set_seed(11)  # of what is shuffled
    keras.utils.set_random_seed(11)
    extra = {"validation_data": (x[:5], y[:5]), "validation_batch_size": 3} if drawn["validated"] else {}
    history = model.fit(**data_of(drawn), epochs=2, verbose=0, **extra).history
    return {
        "weights": model.get_weights(),
        "logs": history,
        "evaluated": model.evaluate(x[:11], y[:11], batch_size=drawn["batch_size"], verbose=0),
    }
