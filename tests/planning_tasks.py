"""What the ranks of a pool do for the tests of plans, counts and sizes; and the model that is planned."""

import io
from contextlib import redirect_stdout

import keras
import numpy as np
from keras import layers

from tests.layout_cases import HEADS

WORDS, LENGTH, WIDTH = 64, 16, 32


def transformer() -> keras.Model:
    """A block of the names that the strategy `megatron` knows."""
    x = inputs = layers.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH, name="embedding")(x)
    inner = layers.LayerNormalization(name="norm")(x)
    x = x + layers.MultiHeadAttention(4, 8, name="attention")(inner, inner, use_causal_mask=True)
    inner = layers.Dense(4 * WIDTH, "gelu", name="block_up")(layers.LayerNormalization(name="norm2")(x))
    x = x + layers.Dense(WIDTH, name="block_down")(inner)
    model = keras.Model(inputs, layers.Dense(WORDS, name="logits")(x), name="transformer")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=1.0), loss)
    return model


def quickstart() -> keras.Model:
    """Two products and a ReLU between them, of the sizes in the tutorials."""
    inputs = layers.Input((32,))
    x = layers.ReLU(name="relu")(layers.Dense(16, use_bias=False, name="first")(inputs))
    model = keras.Model(inputs, layers.Dense(16, use_bias=False, name="second")(x), name="quickstart")
    model.compile(keras.optimizers.SGD(0.2, 0.1), "mse")
    return model


def run_transformer(mesh: tuple[int, ...]) -> dict:
    """Trains two steps of 8 rows; the description of it, and what was really counted while it was traced."""
    import tensorflow as tf

    import keras_par as kp
    from keras_par.comm import world
    from keras_par.comm.counted import CountedCommunicator

    keras.utils.set_random_seed(1)
    with kp.load_strategy("megatron", mesh=mesh).scope():
        model = transformer()
    x = np.random.default_rng(1).integers(0, WORDS, (16, LENGTH))
    data = tf.data.Dataset.from_tensor_slices((x, np.roll(x, -1, 1))).batch(8, drop_remainder=True)
    counting = CountedCommunicator(world.current())
    before = world.replace(counting)
    try:
        model.fit(data, verbose=0)
    finally:
        world.replace(before)
    described = kp.describe(model).as_json()
    names = {call["name"] for call in described["collectives"]["train_step"]}
    sent = [[call.kind, call.num_bytes] for call in counting.calls if call.name in names]
    return {**described, "sent": sent[: len(names)]}


def count_blocks() -> dict:
    """The collectives of a column and a row, of an attention, of logits and loss, each behind a trained layer."""
    import keras_par as kp
    from tests.layout_tasks import dividing

    keras.utils.set_random_seed(1)
    before = layers.Dense(8, name="before")
    up, down = layers.Dense(32, "relu", name="up"), layers.Dense(8, name="down")
    found = {}
    for name, layer, layout in (
        (
            "dense",
            lambda x: down(up(x)),
            {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)},
        ),
        (
            "attention",
            lambda x: layers.MultiHeadAttention(2, 4, name="attention")(x, x),
            HEADS,
        ),
        ("vocabulary", layers.Dense(8, name="logits"), {"logits/kernel": (None, "model"), "logits/bias": ("model",)}),
    ):
        keras.utils.clear_session(free_memory=False)
        with dividing(layout, (1, 2)):
            x = layers.Input((4, 8))
            model = keras.Model(x, layer(before(x)))
            loss = "mse" if name != "vocabulary" else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile("sgd", loss)
            y = np.zeros((6, 4) if name == "vocabulary" else (6, 4, 8), "int32" if name == "vocabulary" else "float32")
            model.fit(np.zeros((6, 4, 8), "float32"), y, batch_size=6, verbose=0)
            calls = kp.describe(model).collectives["train_step"]
        found[name] = [[call.kind, "loss" if "loss" in call.layer else call.layer] for call in calls]
    return found


def hold_block() -> dict:
    """The share of parameters and slots of a 1024-4096-1024 block, and the largest tensor made while it was built."""
    from keras_par.keras_patches.variables.sharded_variable import ShardedVariable
    from tests.layout_tasks import dividing

    largest = 0
    original = ShardedVariable._initialize_shard

    def noting(self, make_whole):
        def make():
            nonlocal largest
            value = make_whole()
            largest = max(largest, int(np.prod(value.shape)) * 4)
            return value

        return original(self, make)

    ShardedVariable._initialize_shard = noting
    layout = {"up/kernel": (None, "model"), "up/bias": ("model",), "down/kernel": ("model", None)}
    try:
        with dividing(layout, (1, 2)):
            x = layers.Input((1024,))
            hidden = layers.Dense(4096, "relu", name="up")(x)
            model = keras.Model(x, layers.Dense(1024, name="down")(hidden))
            model.compile("adam", "mse")
            model.fit(np.zeros((2, 1024), "float32"), np.zeros((2, 1024), "float32"), verbose=0)
    finally:
        ShardedVariable._initialize_shard = original
    variables = [*model.variables, *model.optimizer.variables]
    held = sum(v.local.numpy().nbytes if isinstance(v, ShardedVariable) else v.numpy().nbytes for v in variables)
    return {"share": held / sum(int(np.prod(v.shape)) * 4 for v in variables), "largest_whole": largest}


def describe() -> dict:
    """What is shown about a model of two layers."""
    import keras_par as kp
    from tests.layout_tasks import dividing

    with dividing({"up/kernel": (None, "model")}, (1, 2)):
        x = layers.Input((8,))
        model = keras.Model(x, layers.Dense(4)(layers.Dense(16, name="up")(x)))
        model.compile("sgd", "mse")
        with redirect_stdout(io.StringIO()) as printed:
            model.summary()
        parameters = sum(int(np.prod(variable.shape)) for variable in model.variables)
        return {
            "text": str(kp.describe(model)),
            "summary": printed.getvalue(),
            "count_params": model.count_params(),
            "parameters": parameters,
        }


def of_any_length() -> keras.Model:
    """A model of texts of any length."""
    x = inputs = layers.Input((None,), dtype="int32")
    model = keras.Model(inputs, layers.Dense(4, name="head")(layers.Embedding(WORDS, WIDTH, name="table")(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model
