"""Trainings on a GPU, by ranks and by plain Keras, and what a rank sees of the GPU."""

import contextlib
import time

import keras
import numpy as np
from keras import layers

from tests.tasks import strategy_scope

ROWS, STEPS = 32, 20
LENGTH, WORDS = 16, 64

_timed: dict[str, tuple] = {}  # models whose steps are timed, with their data


def mlp(dropout: float = 0.0, width: int = 256) -> keras.Model:
    inner = [layer for _ in range(2) for layer in (layers.Dense(width, "relu"), layers.Dropout(dropout, seed=3))]
    return keras.Sequential([layers.Input((32,)), *inner, layers.Dense(10, dtype=head())])


def cnn(dropout: float = 0.0) -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            *(layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()),
            *(layers.MaxPooling2D(), layers.Conv2D(32, 3, activation="relu"), layers.GlobalAveragePooling2D()),
            *(layers.Dropout(dropout, seed=3), layers.Dense(10, dtype=head())),
        ]
    )


def transformer(dropout: float = 0.0, width: int = 32, blocks: int = 2, length: int = LENGTH) -> keras.Model:
    x = inputs = layers.Input((length,), dtype="int32")
    x = layers.Embedding(WORDS, width)(x)
    for block in range(blocks):
        inner = layers.LayerNormalization()(x)
        heads = layers.MultiHeadAttention(4, width // 4, dropout=dropout, seed=5, name=f"attention_{block}")
        x = x + heads(inner, inner, use_causal_mask=True)
        up = layers.Dense(4 * width, "gelu", name=f"up_{block}")
        x = x + layers.Dense(width, name=f"down_{block}")(up(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(WORDS, dtype=head())(layers.LayerNormalization()(x)))


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
LAYOUT = {".*up_.*/kernel": (None, "model"), ".*up_.*/bias": ("model",), ".*down_.*/kernel": ("model", None)}


def head() -> str | None:
    """Logits are of full precision, as Keras's guide to mixed precision has it."""
    return None if keras.config.dtype_policy().compute_dtype == "float64" else "float32"


def data(model: keras.Model, rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    shape = (rows, *model.input_shape[1:])
    if model.inputs[0].dtype == "int32":
        x = random.integers(0, WORDS, shape, dtype="int32")
        return x, np.roll(x, -1, 1)
    return random.standard_normal(shape), random.integers(0, 10, (rows,))


def train(
    name: str,
    distributed: bool,
    policy: str = "float32",
    tf32: bool = False,
    jit: bool = False,
    dropout: float = 0.0,
    clip: float | None = None,
    mesh: tuple | None = None,
    **options,
) -> dict:
    """Weights, losses and the peak of the GPU's memory in bytes, after 20 steps."""
    import tensorflow as tf

    keras.utils.set_random_seed(7)
    keras.config.set_dtype_policy(policy)
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    with divided(mesh) if mesh is not None and distributed else strategy_scope(distributed, **options):
        model = MODELS[name](dropout)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=clip)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
        x, y = data(model, ROWS * STEPS)
        tf.config.experimental.reset_memory_stats("GPU:0")
        history = model.fit(x, y, batch_size=ROWS, epochs=1, verbose=0, shuffle=False)
    values = [variable.value for variable in model.trainable_variables]
    return {
        "weights": [np.asarray(weight, "float64") for weight in model.get_weights()],
        "loss": history.history["loss"],
        "peak": tf.config.experimental.get_memory_info("GPU:0")["peak"],
        "devices": {value.device.rpartition("/")[-1] for value in values if hasattr(value, "device")},  # undivided
    }


def divided(mesh: tuple) -> contextlib.AbstractContextManager:
    """The scope of a strategy that divides the transformer's inner layers over the ranks."""
    import keras_par as kp

    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ("batch", "model")))
    for pattern, dims in LAYOUT.items():
        layout[pattern] = dims
    return kp.ModelParallel(layout_map=layout, batch_dim_name="batch").scope()


def sees() -> dict:
    """What this rank knows of its GPU, and how its sums go."""
    import tensorflow as tf

    from keras_par.comm import world

    [gpu] = tf.config.get_visible_devices("GPU")
    about = tf.config.experimental.get_device_details(gpu)
    return {
        "gpu": f"{about['device_name']}, compute capability {'.'.join(map(str, about['compute_capability']))}",
        "size": world.current().size,
        "reduces_by": world.current().reduces_by,
        "why": world.current().no_shared_memory,
    }


def seconds(name: str, distributed: bool, steps: int, jit: bool = False, **size) -> float:
    """Of a step of a model that is made once, in a call of `fit` that has warmed up."""
    key = f"{name} {jit}"
    if key not in _timed:
        keras.utils.set_random_seed(7)
        with strategy_scope(distributed):
            model = MODELS[name](**size)
            model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
            _timed[key] = model, data(model, steps * ROWS)
            model.fit(*data(model, 8 * ROWS), batch_size=ROWS, verbose=0)
    model, (x, y) = _timed[key]
    begin = time.perf_counter()
    model.fit(x, y, batch_size=ROWS, verbose=0)
    return (time.perf_counter() - begin) / steps
