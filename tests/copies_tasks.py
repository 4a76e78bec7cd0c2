"""Trainings on a mesh of ranks whose numbers differ in their last bits, as those of GPUs do."""

import contextlib
from unittest import mock

import keras
import numpy as np
from keras import layers, optimizers

from tests.tasks import seed

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9),
    "clipped": lambda: optimizers.Adam(1e-2, global_clipnorm=0.05),
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "accumulated": lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adagrad(0.1), initial_scale=8.0),
}
LAYOUT = {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}
LAST_BITS = 2.0**-50


class OwnBits(layers.Layer):
    """Makes numbers, and the gradients that it sends back, a little larger on each further rank."""

    def __init__(self, rank: int, bits: float):
        super().__init__()
        self.factor = 1 + bits * rank

    def call(self, x):
        return x * self.factor


class OwnStep(keras.Model):
    """As Keras's own step, with a tape."""

    def train_step(self, batch):
        import tensorflow as tf

        (x, y), weights = batch, self.trainable_weights
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def train(
    name: str,
    mesh: tuple | None,
    own_step: bool = False,
    shared: bool = True,
    bits: float = LAST_BITS,
    **options,
) -> dict:
    """Weights, and the losses of batches and epochs, after two epochs on a mesh of ranks, or of plain Keras."""
    seed(False)
    keras.config.set_dtype_policy("float64")
    random = np.random.default_rng(0)
    x, y = random.integers(0, 8, (60, 6)), random.normal(size=(60, 3))
    rank, scope = 0, contextlib.nullcontext()
    if mesh is not None:
        import keras_par as kp

        layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
        for pattern, axes in LAYOUT.items():
            layout[pattern] = axes
        rank, scope = kp.rank(), kp.ModelParallel(layout_map=layout, batch_dim_name="batch", **options).scope()
    with scope, without_same_bits(shared) if mesh is not None else contextlib.nullcontext():
        inputs = layers.Input((6,))
        inner = layers.Flatten()(layers.Embedding(8, 4)(inputs))
        inner = layers.Dense(6, name="down")(layers.Dense(8, "tanh", name="up")(inner))
        outputs = layers.Dense(3)(layers.LayerNormalization()(OwnBits(rank, bits)(inner)))
        model = (OwnStep if own_step else keras.Model)(inputs, outputs)
        model.compile(OPTIMIZERS[name](), "mse")
        seen: list[float] = []
        noting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
        history = model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[noting])
    return {
        "weights": [np.asarray(value) for value in model.get_weights()],
        "losses": [float(loss) for loss in (*seen, *history.history["loss"])],
    }


@contextlib.contextmanager
def without_same_bits(shared: bool):
    """Within it ranks know that they do not repeat bits, if `shared`."""
    from keras_par.sharding import copies

    with mock.patch.object(copies, "repeats_bits", lambda: not shared):
        yield
