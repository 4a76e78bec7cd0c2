"""Training steps as users write them, each run by plain Keras in one process and by N ranks, which must end alike.

Nothing here imports keras_par: the same lines run in both. `Case` is that of tests/cases.py.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cases import DOUBLE, Case, arrays, compiled, crossentropy, network, one_left_over, rows, sequences

STEPS: dict[str, Case] = {}
OPTIONS: dict[str, dict[str, Any]] = {}  # what the strategy must be told for a case
SGD = keras.optimizers.SGD
Adam = keras.optimizers.Adam


def case(name: str, data=arrays, options: dict[str, Any] | None = None, double: bool = False, **fit):
    def register(model):
        STEPS[name] = Case(model, data, fit, **(DOUBLE if double else {}))
        OPTIONS[name] = options or {}
        return model

    return register


def step_case(name: str, optimizer=lambda: SGD(0.1), model=lambda: network(), **options):
    """A case of a model whose `train_step` is the decorated function of the model, x and y."""

    def register(step):
        def make():
            own = Own(model(), step)
            own.compile(optimizer(), crossentropy())
            return own

        case(name, **options)(make)
        return step

    return register


class Own(keras.Model):
    """A model around another, whose training step is a function."""

    def __init__(self, inner, step):
        super().__init__()
        self.inner, self.step = inner, step
        self.tracker = keras.metrics.Mean(name="own_loss")
        if not inner.built:
            inner.build((None, 8))

    def call(self, x, training=None):
        return self.inner(x, training=training)

    def train_step(self, data):
        return self.step(self, *data)

    def mean_loss(self, x, y):
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True))

    def logs(self, loss):
        self.tracker.update_state(loss)
        return {"own_loss": self.tracker.result()}

    @property
    def metrics(self):
        return [self.tracker]

    def taken(self, x, y):
        """The mean loss and its gradients."""
        with tf.GradientTape() as tape:
            loss = self.mean_loss(x, y)
        return loss, tape.gradient(loss, self.trainable_variables)


# What a step does to gradients before the update.


@step_case("clip-by-global-norm")
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("clip-each", optimizer=lambda: SGD(0.1, momentum=0.9))
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    gradients = [tf.clip_by_norm(gradient, 0.05) for gradient in gradients]
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model.logs(loss)


@step_case("normalized-thin", data=one_left_over)
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    gradients = [gradient / (tf.norm(gradient) + 1e-3) for gradient in gradients]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("sharpness-aware")
def _(model, x, y):
    _, gradients = model.taken(x, y)
    scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
    moves = [gradient * scale for gradient in gradients]
    for variable, move in zip(model.trainable_variables, moves, strict=True):
        variable.assign_add(move)
    loss, gradients = model.taken(x, y)
    for variable, move in zip(model.trainable_variables, moves, strict=True):
        variable.assign_sub(move)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("gradient-noise")
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    seeds = [tf.stack([number, tf.cast(model.optimizer.iterations, tf.int32)]) for number in range(len(gradients))]
    noise = [tf.random.stateless_normal(g.shape, seed) for g, seed in zip(gradients, seeds, strict=True)]
    gradients = [g * (1.0 + 0.3 * n) + 0.01 * n for g, n in zip(gradients, noise, strict=True)]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("sign-assigned-by-hand")
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.05 * gradient / (tf.abs(gradient) + 0.01))
    return model.logs(loss)


class Accumulating(Own):
    """Adds up the gradients of two steps in variables of its own."""

    def __init__(self, inner, step):
        super().__init__(inner, step)
        self.sums = [self.add_weight(shape=v.shape, initializer="zeros", trainable=False) for v in self.inner.variables]
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)


def accumulate(model, x, y):
    loss, gradients = model.taken(x, y)
    for total, gradient in zip(model.sums, gradients, strict=True):
        total.assign_add(gradient)
    model.count.assign_add(1)

    def update():
        gradients, _ = tf.clip_by_global_norm([total / 2.0 for total in model.sums], 0.1)
        model.optimizer.apply(gradients, model.trainable_variables)
        for total in model.sums:
            total.assign(tf.zeros_like(total))
        return 0

    tf.cond(model.count % 2 == 0, update, lambda: 0)
    return model.logs(loss)


@case("accumulate-by-hand")
def _():
    model = Accumulating(network(), accumulate)
    model.compile(Adam(1e-2), crossentropy())
    return model


@step_case("micro-batches", data=lambda: {**arrays(64), "shuffle": False})
def _(model, x, y):
    sums = [tf.zeros(v.shape) for v in model.trainable_variables]
    loss = 0.0
    for part in range(2):
        with tf.GradientTape() as tape:
            loss = model.mean_loss(x[part::2], y[part::2])
        for place, gradient in enumerate(tape.gradient(loss, model.trainable_variables)):
            sums[place] += gradient / 2.0
    sums, _ = tf.clip_by_global_norm(sums, 0.1)
    model.optimizer.apply(sums, model.trainable_variables)
    return model.logs(loss)


# What an optimizer does.


def clipped_by_hand(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.mean_loss(x, y)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    gradients = [tf.clip_by_norm(gradient, 20.0) for gradient in gradients]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


for _name, _optimizer in {
    "own-global-clipnorm": lambda: Adam(1e-2, global_clipnorm=0.3),
    "own-loss-scale": lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=256.0),
    "own-moving-average": lambda: Adam(1e-2, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "own-accumulation": lambda: Adam(1e-2, gradient_accumulation_steps=3, global_clipnorm=0.2),
    "own-loss-scale-accumulation": lambda: keras.optimizers.LossScaleOptimizer(
        SGD(0.1, gradient_accumulation_steps=2), initial_scale=256.0
    ),
}.items():
    step_case(_name, optimizer=_optimizer)(clipped_by_hand)


class Centred(Adam):
    """Clips gradients in a way of its own: by their distance from their mean, before or instead of Keras's."""

    def __init__(self, *args, and_by_norm=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.and_by_norm = and_by_norm

    def _clip_gradients(self, grads):
        grads = [tf.clip_by_norm(grad - tf.reduce_mean(grad), 0.1) for grad in grads]
        return super()._clip_gradients(grads) if self.and_by_norm else grads


for _name, _options in {
    "optimizer-clips": {},
    "optimizer-clips-twice": {"and_by_norm": True, "global_clipnorm": 0.05},
    "optimizer-clips-accumulated": {"gradient_accumulation_steps": 2},
}.items():
    case(_name, double=True)(lambda options=_options: compiled(Centred(1e-2, **options), network()))
    step_case(f"own-{_name}", optimizer=lambda options=_options: Centred(1e-2, **options))(clipped_by_hand)


class CompileAnew(keras.callbacks.Callback):
    """Goes on with another optimizer from the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.compile(SGD(0.05, momentum=0.9), crossentropy(), metrics=["accuracy"])
            self.model.make_train_function(force=True)


@case("compile-in-a-callback", callbacks=[CompileAnew()])
def _():
    return compiled(Adam(1e-2), network())


@case("own-multi-optimizer")
def _():
    inner = network()
    by_path = keras.optimizers.OptimizerMap(default_optimizer=SGD(0.1))
    by_path[f"{inner.layers[-1].name}/.*"] = Adam(1e-2)
    model = Own(inner, clipped_by_hand)
    model.compile(keras.optimizers.MultiOptimizer(by_path), crossentropy())
    return model


# How a step takes gradients.


@step_case("graph-gradients")
def _(model, x, y):
    loss = model.mean_loss(x, y)
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [v.value for v in model.trainable_variables]), 0.1)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("persistent-tape", double=True)
def _(model, x, y):
    first, second = model.trainable_variables[:2], model.trainable_variables[2:]
    with tf.GradientTape(persistent=True) as tape:
        loss = model.mean_loss(x, y)
        other = tf.reduce_mean(tf.square(model(x)))
    gradients = [tf.clip_by_norm(g, 0.1) for g in tape.gradient(loss, first)]
    gradients += [tf.clip_by_norm(g, 0.1) for g in tape.gradient([loss, other], second)]
    # Without it plain Keras does not repeat itself: TensorFlow updates `first` while it computes gradients of `second`.
    with tf.control_dependencies(gradients):
        model.optimizer.apply(gradients, first + second)
    return model.logs(loss)


@step_case("several-losses")
def _(model, x, y):
    """One is a vector of rows, one a mean, one a vector of means of the batch."""
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        losses = [
            0.05 * keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True),
            tf.reduce_mean(tf.square(outputs)),
            0.1 * tf.reduce_mean(tf.abs(outputs), axis=0),
        ]
    gradients = [tf.clip_by_norm(g, 0.1) for g in tape.gradient(losses, model.trainable_variables)]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(losses[1])


@step_case("vector-loss", data=one_left_over)
def _(model, x, y):
    with tf.GradientTape() as tape:
        loss = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.1)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(tf.reduce_mean(loss))


@step_case("nested-sources")
def _(model, x, y):
    kernels = {v.path: v.value for v in model.trainable_variables if "kernel" in v.path}
    unused = model.tracker.total.value
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = model.mean_loss(x, y)
    sources = {"kernels": kernels, "others": [unused, x]}
    found = tape.gradient(loss, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    others = found["others"]
    towards_loss = x + 0.1 * tf.math.l2_normalize(others[1], axis=1)  # of rows, which have no share in it
    variables = [v for v in model.trainable_variables if v.path in kernels]
    gradients = [tf.clip_by_norm(found["kernels"][v.path], 0.1) + others[0] for v in variables]
    with tf.GradientTape() as tape:
        other = model.mean_loss(towards_loss, y)
    gradients = [a + b for a, b in zip(gradients, tape.gradient(other, variables), strict=True)]
    model.optimizer.apply(gradients, variables)
    return model.logs(loss)


@step_case("output-gradients")
def _(model, x, y):
    with tf.GradientTape() as tape:
        loss = model.mean_loss(x, y)
    found = tape.gradient(loss, model.trainable_variables, output_gradients=tf.constant(0.5))
    model.optimizer.apply([tf.clip_by_norm(g, 0.1) for g in found], model.trainable_variables)
    return model.logs(loss)


@step_case("jacobian-of-tasks")
def _(model, x, y):
    """The gradients of three tasks, of which each loses what points against the first."""
    with tf.GradientTape() as tape:
        tasks = tf.reduce_mean(tf.square(model(x, training=True) - tf.one_hot(y, 3)), axis=0)
    jacobians = tape.jacobian(tasks, model.trainable_variables)
    flat = tf.concat([tf.reshape(j, [3, -1]) for j in jacobians], 1)
    against = tf.minimum(tf.linalg.matvec(flat, flat[0]), 0.0) / tf.reduce_sum(tf.square(flat[0]))
    flat = tf.reduce_sum(flat - against[:, None] * flat[:1], 0)
    sizes = [int(np.prod(v.shape)) for v in model.trainable_variables]
    parts = tf.split(flat, sizes)
    gradients = [tf.reshape(part, v.shape) for part, v in zip(parts, model.trainable_variables, strict=True)]
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(tf.reduce_sum(tasks))


@step_case("contractive")
def _(model, x, y):
    """A penalty on the Jacobian of each row."""
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            outputs = model(x, training=True)
        jacobian = inner.batch_jacobian(outputs, x)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))
        loss += 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(jacobian), [1, 2]))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.2)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("adversarial")
def _(model, x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        per_row = keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
    x = x + 0.1 * tf.math.l2_normalize(tape.gradient(per_row, x), axis=1)
    loss, gradients = model.taken(x, y)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("gradient-norm-penalty")
def _(model, x, y):
    """Second order: a gradient of the norm of the gradient."""
    with tf.GradientTape() as tape:
        loss, gradients = model.taken(x, y)
        penalized = loss + 0.5 * tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])
    gradients = tape.gradient(penalized, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(penalized)


@step_case("meta-learning")
def _(model, x, y):
    """One inner update of the last layer, through which the outer gradient goes, as in MAML."""
    layer = model.inner.layers[-1]
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = model.mean_loss(x, y)
        by_kernel = inner.gradient(loss, layer.kernel)
        hidden = x
        for each in model.inner.layers[:-1]:
            hidden = each(hidden)
        outputs = tf.matmul(hidden, layer.kernel - 0.5 * by_kernel) + layer.bias
        outer_loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))
    gradients = outer.gradient(outer_loss, model.trainable_variables)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(outer_loss)


@step_case("stock-step-and-another")
def _(model, x, y):
    """Keras's own step, and then one more update by hand."""
    logs = keras.Model.train_step(model, (x, y))
    loss, gradients = model.taken(x, y)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
    return {**logs, **model.logs(loss)}


@step_case("two-updates")
def _(model, x, y):
    loss = 0.0
    for _ in range(2):
        loss, gradients = model.taken(x, y)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case(
    "own-synchronized",
    model=lambda: network(layers.BatchNormalization(synchronized=True, momentum=0.8)),
    double=True,
)
def _(model, x, y):
    loss, gradients = model.taken(x, y)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("penalty-through-batchnorm", model=lambda: network(layers.BatchNormalization(momentum=0.8)), double=True)
def _(model, x, y):
    """A penalty on gradients with respect to inputs, each of which depends on the rows of all ranks."""
    x = tf.cast(x, "float64")
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = tf.reduce_sum(tf.square(model(x, training=True)))
        penalty = tf.reduce_mean(tf.square(tape.gradient(score, x)))
        loss = model.mean_loss(x, y) + 0.1 * penalty
    model.optimizer.apply(outer.gradient(loss, model.trainable_variables), model.trainable_variables)
    return model.logs(loss)


def embedding() -> keras.Model:
    return keras.Sequential([layers.Input((6,)), layers.Embedding(20, 8), layers.Flatten(), layers.Dense(6)])


@step_case("sparse-gradients", data=sequences, model=embedding)
def _(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.cast(y, tf.float32)))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.3)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case("sparse-second-order", data=sequences, model=embedding)
def _(model, x, y):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - tf.cast(y, tf.float32)))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, model.trainable_variables)]
        penalized = loss + 0.1 * tf.add_n([tf.reduce_sum(tf.square(g)) for g in gradients])
    model.optimizer.apply(outer.gradient(penalized, model.trainable_variables), model.trainable_variables)
    return model.logs(penalized)


# Sums over the batch.

SUMS = {"custom_loss": "sum"}


@step_case("sum", options=SUMS)
def _(model, x, y):
    with tf.GradientTape() as tape:
        loss = 0.05 * tf.reduce_sum(
            keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        )
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.2)
    model.optimizer.apply(gradients, model.trainable_variables)
    return model.logs(loss)


@step_case(
    "sum-beside-means",
    model=lambda: network(layers.Dense(16, "tanh", kernel_regularizer="l2")),
    data=one_left_over,
    options=SUMS,
)
def _(model, x, y):
    """A sum by hand, a mean by Keras's loss, and regularizers."""
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        loss = model.compute_loss(y=y, y_pred=outputs) + 0.01 * tf.reduce_sum(tf.square(outputs))
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return model.logs(loss)


@step_case("average-over-a-fixed-size", options=SUMS)
def _(model, x, y):
    with tf.GradientTape() as tape:
        per_row = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
        loss = tf.nn.compute_average_loss(per_row, global_batch_size=16)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    return model.logs(loss)


class Sparsity(layers.Layer):
    """Adds a sum over the batch to the loss, as Keras's guide does."""

    def call(self, x):
        self.add_loss(0.005 * ops.sum(ops.square(x)))
        return x


@case("add-loss-sum", options=SUMS, validation_data=rows(37, 9), validation_batch_size=10)
def _():
    model = network(Sparsity())
    model.compile(SGD(0.1), crossentropy(), metrics=["accuracy"])
    return model
