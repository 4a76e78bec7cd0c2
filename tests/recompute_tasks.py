"""What the ranks of a pool do for the tests of recomputation; and the models that are recomputed."""

import contextlib
from collections import Counter

import keras
import numpy as np
from keras import layers, ops

WIDTH, LENGTH, WORDS = 8, 6, 12
NUM_BLOCKS = 2


class Block(layers.Layer):
    """Two products with dropout between them, beside what they are added to."""

    def build(self, shape):
        self.norm = layers.LayerNormalization(name="norm")
        self.up = layers.Dense(4 * WIDTH, "tanh", name="up")
        self.drop = layers.Dropout(0.3, seed=3)
        self.down = layers.Dense(WIDTH, name="down")
        for layer in (self.norm, self.up):
            layer.build(shape)
        self.down.build((*shape[:-1], 4 * WIDTH))

    def call(self, x, training=False):
        return x + self.down(self.drop(self.up(self.norm(x)), training=training))


class Remembering(layers.Layer):
    """A function of structures and keyword arguments that reads a tensor besides; by `keras.remat` on ranks."""

    def build(self, shape):
        self.remat = keras.remat if keras.distribution.distribution() else lambda f: f
        self.up = layers.Dense(WIDTH, name="up")
        self.beside = layers.Dense(WIDTH, name="beside_up")
        for layer in (self.up, self.beside):
            layer.build(shape)

    def call(self, x):
        beside = self.beside(x)

        def f(given, scale=1.0, more=None):
            product = self.up(given["x"]) * scale
            return {
                "sum": product + ops.roll(beside, 1, axis=-1),
                "both": (product * more, [ops.shape(product)[-1], None]),
            }

        found = self.remat(f)({"x": x, "label": "none"}, scale=0.5, more=ops.sin(x))
        return found["sum"] + found["both"][0]


class Averaging(layers.Layer):
    """Counts its calls and keeps a mean, adds a loss, and reads a variable in a branch alone."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
        self.mean = self.add_weight(shape=(WIDTH,), initializer="zeros", trainable=False, name="mean")
        self.scale = self.add_weight(shape=(WIDTH,), initializer="ones", name="scale")

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
            self.mean.assign(0.9 * self.mean + 0.1)
        self.add_loss(0.1 * ops.mean(ops.square(x)))
        scaled = ops.cond(self.calls >= 0, lambda: x * self.scale, lambda: x)
        return scaled * (1.0 + self.calls) + self.mean


def blocks() -> keras.Model:
    """Blocks between two products."""
    x = inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH, name="first")(x)
    for number in range(NUM_BLOCKS):
        x = Block(name=f"block_{number}")(x)
    return compiled(keras.Model(inputs, layers.Dense(WIDTH, name="last")(x)), "mse")


def dense() -> keras.Model:
    """Two products, whose layers get masks and no structure."""
    x = inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH, name="first")(x)
    x = layers.Dense(4 * WIDTH, "tanh", name="up")(x)
    x = layers.Dropout(0.3, seed=3, name="drop")(x)
    return compiled(keras.Model(inputs, layers.Dense(WIDTH, name="down")(x)), "mse")


def attention() -> keras.Model:
    """Attention to words of which some are masked, and a softmax over a vocabulary."""
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH, mask_zero=True, name="embedding")(x)
    x = layers.Add()([x, layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.2, seed=5, name="attention")(x, x)])
    x = layers.Dense(WIDTH, "tanh", name="up")(x)
    x = layers.Dense(WORDS, "softmax", name="down")(x)
    return compiled(keras.Model(inputs, x), "sparse_categorical_crossentropy")


def sharp() -> keras.Model:
    """A softmax whose logits say what its probabilities do not."""
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Dense(WIDTH, "tanh", name="up")(layers.Embedding(WORDS, WIDTH, name="embedding")(x))
    large = keras.initializers.RandomNormal(stddev=60.0, seed=9)
    x = layers.Dense(WORDS, "softmax", kernel_initializer=large, name="down")(x)
    # A loss of another type would cast its input, which then has no logits.
    loss = keras.losses.SparseCategoricalCrossentropy(dtype=keras.config.dtype_policy().compute_dtype)
    return compiled(keras.Model(inputs, x), loss)


def nested() -> keras.Model:
    """A model within a model."""
    inner = keras.Sequential(
        [layers.Dense(4 * WIDTH, "tanh", name="up"), layers.Dense(WIDTH, name="down")], name="inner"
    )
    model = keras.Sequential([layers.Input((WIDTH,)), layers.Dense(WIDTH, name="first"), inner])
    return compiled(model, "mse")


def state() -> keras.Model:
    """Layers that assign variables and add losses."""
    x = inputs = layers.Input((WIDTH,))
    x = layers.Dense(WIDTH, activity_regularizer="l2", name="first")(x)
    x = layers.BatchNormalization(momentum=0.5, synchronized=True, name="norm")(x)
    x = Averaging(name="averaging")(x)
    x = layers.Dense(WIDTH, "tanh", name="up")(x)
    return compiled(keras.Model(inputs, layers.Dense(WIDTH, name="down")(x)), "mse")


def function() -> keras.Model:
    """A layer that uses `keras.remat` itself."""
    model = keras.Sequential([layers.Input((WIDTH,)), layers.Dense(WIDTH, name="first"), Remembering(name="inner")])
    return compiled(model, "mse")


def loop() -> keras.Model:
    """A recurrent layer with dropout."""
    x = inputs = layers.Input((LENGTH, WIDTH))
    x = layers.LSTM(WIDTH, dropout=0.2, recurrent_dropout=0.2, seed=7, name="loop")(x)
    return compiled(keras.Model(inputs, layers.Dense(WIDTH, name="down")(x)), "mse")


class OwnStep(keras.Model):
    """Takes gradients itself, and divides them by one more than the number of losses that layers have then added."""

    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([gradient / (1 + len(self.losses)) for gradient in gradients], self.trainable_variables)
        return {"loss": loss}


def own_step() -> keras.Model:
    """A block and a loop, which reads its variables within, in a model whose step takes gradients itself."""
    x = inputs = layers.Input((WIDTH,))
    x = Averaging(name="averaging")(Block(name="block_0")(layers.Dense(WIDTH, name="first")(x)))
    x = layers.LSTM(WIDTH, name="loop")(layers.Reshape((WIDTH, 1))(x))
    return compiled(OwnStep(inputs, x), "mse")


def compiled(model: keras.Model, loss: str | keras.losses.Loss) -> keras.Model:
    """The model with an optimizer."""
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss)
    return model


MODELS = {each.__name__: each for each in (blocks, dense, attention, sharp, nested, state, function, loop, own_step)}
DATA = "data parallel"
LAYOUTS: dict[str, dict] = {
    "columns and rows": {
        ".*up/kernel": (None, "model"),
        ".*up/bias": ("model",),
        ".*down/kernel": ("model", None),
        ".*(query|key|value)/kernel": (None, "model", None),
        ".*embeddings": (None, "model"),
    },
    "rows first": {".*up/kernel": ("model", None), ".*down/kernel": (None, "model"), "norm/gamma": ("model",)},
    "stored along the batch": {
        ".*(first|up)/kernel": (None, "batch"),
        ".*down/kernel": ("batch", None),
        ".*(query|key|value)/kernel": ("batch", None, None),
    },
}


def strategy_of(layout: str, name: str, **options):
    """A strategy with those of a layout's patterns that match something."""
    import keras_par as kp

    if layout == DATA:
        return kp.DataParallel(**options)
    sizes = (2, 1) if layout.startswith("stored") else (1, 2)
    layout_map = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(sizes, ["batch", "model"]))
    for pattern, axes in LAYOUTS[layout].items():
        if fits(pattern, name):
            layout_map[pattern] = axes
    return kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch", **options)


def fits(pattern: str, name: str) -> bool:
    import re

    model = MODELS[name]()
    paths = [variable.path for variable in model.variables]
    keras.utils.clear_session(free_memory=False)
    return any(re.fullmatch(pattern, path) for path in paths)


def train(name: str, policy: str = "float32", scope=contextlib.nullcontext) -> dict:
    """Trains two epochs of three steps, the last of which has fewer rows."""
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(policy)
    with scope():
        model = MODELS[name]()
    logs = model.fit(*data_of(model, 21), batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return {"weights": model.get_weights(), "loss": logs["loss"], "model": model}


def train_plain(name: str, policy: str = "float32") -> dict:
    """The same by Keras as it is, and without recomputation."""
    return without_model(train(name, policy))


def train_recomputed(name: str, layout: str, recompute, policy: str = "float32", mode: str | None = None) -> dict:
    """The same with a strategy that names layers, or in Keras's own scope; with what a step sends."""
    import keras_par as kp

    def scope():
        return keras.RematScope(mode, output_size_threshold=1) if mode else contextlib.nullcontext()

    with strategy_of(layout, name, recompute=recompute).scope():
        found = train(name, policy, scope)
    calls = kp.describe(found["model"]).collectives["train_step"] if kp.size() > 1 else []
    own = [call for call in calls if not call.name.startswith("kp.gradients")]
    about = {"sent": dict(Counter(call.kind for call in own)), "layers": {call.layer for call in own}}
    return {**without_model(found), **about, "num_ranks": kp.size()}


def train_with_and_without(recompute, **options) -> list[list[np.ndarray]]:
    """Weights after a training with recomputation and one without.

    TensorFlow would fuse operations of which nothing else reads what is between them, and round that less.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"remapping": False})
    try:
        return [train_recomputed(recompute=each, **options)["weights"] for each in (recompute, ())]
    finally:
        tf.config.optimizer.set_experimental_options({"remapping": True})


def without_model(found: dict) -> dict:
    return {key: value for key, value in found.items() if key != "model"}


def data_of(model: keras.Model, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Random rows that fit a model."""
    generator = np.random.default_rng(1)
    if "int" in model.inputs[0].dtype:
        words = generator.integers(0, WORDS, (num_rows, LENGTH))
        return words, words[:, ::-1]
    x = generator.normal(size=(num_rows, *model.input_shape[1:])).astype("float32")
    return x, generator.normal(size=(num_rows, WIDTH)).astype("float32")


def mark_and_undo() -> dict:
    """Which layers a strategy recomputes, in models within too, and that the next strategy does not."""
    import keras_par as kp

    with kp.DataParallel(recompute=["down", "first"]).scope():
        model = nested()
        marked = names_recomputed(model)
        model.fit(*data_of(model, 8), verbose=0)
    with kp.DataParallel(recompute=("inner",)).scope():
        model.compile("sgd", "mse")
        whole = names_recomputed(model)
    keras.distribution.set_distribution(kp.DataParallel())
    model.compile("sgd", "mse")
    return {"marked": marked, "whole": whole, "undone": names_recomputed(model)}


def names_recomputed(model: keras.Model) -> list[str]:
    return [layer.name for layer in model._flatten_layers() if layer._remat_mode is not None]


def refused(kind: str) -> str:
    """What is said of recomputation that cannot be."""
    import tensorflow as tf

    import keras_par as kp

    class Drawing(layers.Layer):
        def call(self, x):
            return x * tf.random.uniform(tf.shape(x))

    try:
        with kp.DataParallel(recompute=("draws",) if kind == "draws" else ("blok_0",)).scope():
            model = blocks()
            if kind == "draws":
                x = layers.Dense(WIDTH)(model.inputs[0])
                model = compiled(keras.Model(model.inputs, Drawing(name="draws")(x)), "mse")
            model.fit(*data_of(model, 8), verbose=0)
    except ValueError as error:
        return str(error)
    return ""
