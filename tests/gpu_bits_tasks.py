"""Trainings by ranks whose numbers differ in their last bits, as those of GPUs do: a table of rows, and copies."""

import contextlib
from unittest import mock

import keras
import numpy as np
from keras import layers, optimizers

from tests.tasks import seed

OPTIMIZERS = {
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: optimizers.Adam(1e-2),
    "clipped": lambda: optimizers.Adam(1e-2, global_clipnorm=0.05),
    "clipped one by one": lambda: optimizers.SGD(0.1, clipnorm=0.05),
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
    """As Keras's own step, with a tape; it may clip, by a norm for which it adds up the rows of the table."""

    clips = False

    def train_step(self, batch):
        import tensorflow as tf

        (x, y), weights = batch, self.trainable_weights
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, weights)
        if self.clips:
            gradients, _ = tf.clip_by_global_norm([tf.convert_to_tensor(each) for each in gradients], 0.05)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": loss}


def train(
    name: str,
    distributed: bool,
    mesh: tuple | None = None,
    step: str = "",
    shared: bool = True,
    bits: float = LAST_BITS,
    in_own_order: bool = True,
    **options,
) -> dict:
    """Weights, and the losses of batches and epochs, after two epochs on ranks, or of plain Keras.

    Each batch has the eight rows of the table many times over.
    """
    seed(distributed and mesh is None)
    keras.config.set_dtype_policy("float64")
    random = np.random.default_rng(0)
    x, y = random.integers(0, 8, (60, 6)), random.normal(size=(60, 3))
    rank, scope = 0, contextlib.nullcontext()
    if distributed:
        import keras_par as kp

        rank, scope = kp.rank(), strategy(mesh, options).scope()
    with scope, bits_of_gpus(rank, bits, shared, in_own_order) if distributed else contextlib.nullcontext():
        inputs = layers.Input((6,))
        inner = layers.Flatten()(layers.Embedding(8, 4)(inputs))
        inner = layers.Dense(6, name="down")(layers.Dense(8, "tanh", name="up")(inner))
        if mesh is not None:
            inner = OwnBits(rank, bits)(inner)
        outputs = layers.Dense(3)(layers.LayerNormalization()(inner))
        model = (OwnStep if step else keras.Model)(inputs, outputs)
        model.clips = step == "clips"
        model.compile(OPTIMIZERS[name](), "mse")
        seen: list[float] = []
        noting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["loss"]))
        history = model.fit(x, y, batch_size=12, epochs=2, verbose=0, callbacks=[noting])
    slots = [] if mesh is not None or options else [np.asarray(each) for each in model.optimizer.variables]
    return {
        "weights": [*(np.asarray(value) for value in model.get_weights()), *slots],
        "losses": [float(loss) for loss in (*seen, *history.history["loss"])],
    }


def strategy(mesh: tuple | None, options: dict):
    """Data parallel, or a mesh whose second axis divides the inner layers."""
    import keras_par as kp

    if mesh is None:
        return kp.DataParallel(**options)
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    for pattern, axes in LAYOUT.items():
        layout[pattern] = axes
    return kp.ModelParallel(layout_map=layout, batch_dim_name="batch", **options)


@contextlib.contextmanager
def bits_of_gpus(rank: int, bits: float, shared: bool, in_own_order: bool):
    """Within it each rank adds up slices with bits of its own, as GPUs do; ranks know that, if `shared`."""
    import tensorflow as tf
    from tensorflow.python.framework import indexed_slices

    from keras_par.keras_patches.update import variable_update
    from keras_par.sharding import copies

    update, add = variable_update.update_stored, indexed_slices.gen_math_ops.unsorted_segment_sum

    def update_in_own_order(original, optimizer, pairs, learning_rate):
        pairs = [(turned(each) if isinstance(each, tf.IndexedSlices) else each, variable) for each, variable in pairs]
        update(original, optimizer, pairs, learning_rate)

    def turned(slices):
        order = tf.argsort(tf.sin(tf.range(tf.cast(tf.size(slices.indices), tf.float32)) * (1.0 + rank)))
        return tf.IndexedSlices(tf.gather(slices.values, order), tf.gather(slices.indices, order), slices.dense_shape)

    def add_with_own_bits(data, *args, **kwargs):
        return add(data * tf.cast(1 + bits * rank, data.dtype), *args, **kwargs)

    with (
        mock.patch.object(variable_update, "update_stored", update_in_own_order if in_own_order else update),
        mock.patch.object(indexed_slices.gen_math_ops, "unsorted_segment_sum", add_with_own_bits),
        mock.patch.object(copies, "repeats_bits", lambda: not shared),
    ):
        yield
