"""What the pools run for the tests of random numbers."""

import contextlib
import logging
import random

import keras
import numpy as np
import tensorflow as tf

from tests.cases import arrays, compiled, network, rows
from tests.random_cases import RANDOM_CASES, Noise, Sampling
from tests.tasks import seed, strategy_scope


def train(name: str, distributed: bool) -> dict:
    """Trains a case; its weights, with the states of its seeds, and its logs."""
    case = RANDOM_CASES[name]
    seed(distributed)
    tf.random.set_seed(9)
    with case.precision(), strategy_scope(distributed):
        model = case.model()
        history = model.fit(**case.data(), **case.fit, verbose=0)
    seeds = [np.asarray(v.value).tolist() for layer in all_layers(model) for v in seed_states(layer)]
    return {"weights": [np.asarray(w) for w in model.get_weights()], "seeds": seeds, "logs": history.history}


def train_on_shards(distributed: bool) -> list[np.ndarray]:
    """Trains with dropout on every second row, one process on the batches that two ranks make of these together."""
    x, y = rows(45)
    size = 8
    shards = [(x[rank::2], y[rank::2]) for rank in range(2)]
    seed(distributed)
    if distributed:
        import keras_par as kp

        own = tf.data.Dataset.from_tensor_slices(shards[kp.rank()]).batch(size)
        with kp.DataParallel(auto_shard_dataset=False).scope():
            return fitted_on(own)
    batches = [
        tuple(np.concatenate([part[begin : begin + size] for part in parts]) for parts in zip(*shards, strict=True))
        for begin in range(0, 23, size)
    ]
    whole = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=SIGNATURE)
    return fitted_on(whole.apply(tf.data.experimental.assert_cardinality(len(batches))))


SIGNATURE = (tf.TensorSpec([None, 8], tf.float32), tf.TensorSpec([None], tf.int64))


def fitted_on(dataset) -> list[np.ndarray]:
    model = compiled("sgd", network(keras.layers.Dropout(0.4)))
    model.fit(dataset, epochs=3, verbose=0)
    return model.get_weights()


def generated(distributed: bool) -> dict:
    """What a small language model of KerasHub's writes by chance, after training with dropout."""
    import keras_hub

    keras.utils.set_random_seed(4)
    tokens = np.random.default_rng(1).integers(1, 30, (13, 6))
    mask = np.ones_like(tokens)
    with strategy_scope(distributed):
        backbone = keras_hub.models.GPT2Backbone(30, 1, 2, 8, 16, dropout=0.1, max_sequence_length=6)
        model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
        sampler = keras_hub.samplers.TopPSampler(p=0.9, temperature=3.0, seed=3)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, sampler=sampler)
        model.fit({"token_ids": tokens, "padding_mask": mask}, np.roll(tokens, -1, 1), batch_size=8, verbose=0)
        begun = {"token_ids": tokens[:3], "padding_mask": mask[:3] * (np.arange(6) < 2)}
        texts = [np.asarray(model.generate(begun, stop_token_ids=None)["token_ids"]).tolist() for _ in range(2)]
    return {"weights": model.get_weights(), "texts": texts}


def all_layers(model) -> list:
    return [model, *model._flatten_layers(include_self=False)]


def seed_states(layer) -> list:
    return [generator.state for generator in layer._seed_generators]


def after_fit(which: str, distributed: bool) -> dict:
    """The next number of each global generator after a `fit` of data that is shuffled by one of them."""
    import torch

    keras.utils.set_random_seed(7)
    torch.manual_seed(7)
    x, y = rows(64)
    with strategy_scope(distributed):
        model = compiled("sgd", network(keras.layers.Dropout(0.4)))
        keras.random.normal([2])
        made = SHUFFLED[which](x, y)
        model.fit(**made, epochs=3, verbose=0, validation_data=(x[:8], y[:8]))
    return {
        "random": random.random(),
        "numpy": float(np.random.uniform()),
        "tensorflow": float(tf.random.uniform([])),
        "keras": float(keras.random.uniform([])),
        "torch": float(torch.rand(1)),
        "weights": [np.asarray(weight) for weight in model.get_weights()],
    }


class Augmenting(keras.utils.PyDataset):
    """Batches with NumPy's noise."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 4

    def __getitem__(self, index):
        place = slice(index * 16, index * 16 + 16)
        return self.x[place] + np.random.normal(size=(16, 8)).astype("float32"), self.y[place]


def torch_loader(x, y):
    import torch

    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    return torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)


def augmented(x, y):
    augment = keras.Sequential([keras.layers.GaussianNoise(0.3)])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(16)
    return data.map(lambda x, y: (augment(x, training=True), y))


SHUFFLED = {
    "arrays": lambda x, y: {"x": x, "y": y, "batch_size": 16},
    "dataset": lambda x, y: {"x": tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(16)},
    "augmented": lambda x, y: {"x": augmented(x, y)},
    "py-dataset": lambda x, y: {"x": Augmenting(x, y), "shuffle": True},
    "torch": lambda x, y: {"x": torch_loader(x, y)},
}


def unlike_sentences(which: str) -> list[str]:
    """What is logged of a model and a strategy whose training is not one process's."""
    import keras_par as kp

    seed(True)
    x, y = rows(32)
    options = {"compression": {"compression": "bf16"}, "unsynchronized": {"sync_batch_norm": False}}.get(which, {})
    with logged() as messages, kp.DataParallel(**options).scope():
        extra = {"constant": [Noise(lambda x, seed: keras.random.normal((16, 16), seed=seed))]}.get(
            which, [keras.layers.BatchNormalization()] if which in ("batchnorm", "unsynchronized") else []
        )
        extra += [Shuffling()] if which == "order" else [LookingUp()] if which == "function" else []
        extra += looping() if which == "loop" else []
        is_sparse = which in ("sparse", "eager")
        inputs = keras.layers.Input((8,), sparse=is_sparse)
        outputs = keras.Sequential([keras.layers.Dense(16), *extra, keras.layers.Dense(3)])(inputs)
        kind = Normalizing if which == "normalizing function" else keras.Model
        model = compiled("adam", kind(inputs, outputs), run_eagerly=which == "eager")
        given = tf.data.Dataset.from_tensor_slices((x, y)).batch(32, drop_remainder=True)
        given = given.map(lambda x, y: (tf.sparse.from_dense(x), y)) if is_sparse else given
        given = given.filter(lambda *_: True) if which == "unknown length" else given
        for _ in range(2):
            model.fit(given, epochs=2, verbose=0)
    return messages


def table_sentences(axes: tuple, own: bool) -> list[str]:
    """What is logged of a model with a table that is divided like this, under Keras's step or one of its own."""
    import keras_par as kp
    from tests.step_cases import Own

    def step(model, x, y):
        loss, gradients = model.taken(x, y)
        model.optimizer.apply(gradients, model.trainable_variables)
        return {"loss": loss}

    layout_map = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((kp.size(), 1) if axes[0] == "batch" else (1, kp.size()), ("batch", "model"))
    )
    layout_map[".*embeddings"] = axes
    seed(True)
    x, y = np.arange(64).reshape(32, 2) % 8, rows(32)[1]
    options = {"batch_dim_name": "batch", "custom_loss": "mean"}  # of losses of own steps, which nobody looks at
    with logged() as messages, kp.ModelParallel(layout_map=layout_map, **options).scope():
        parts = [keras.layers.Input((2,), dtype="int32"), keras.layers.Embedding(8, 4), keras.layers.Flatten()]
        inner = keras.Sequential([*parts, keras.layers.Dense(3)])
        model = Own(inner, step) if own else inner
        compiled("adam", model).fit(x, y, batch_size=8, epochs=2, verbose=0)
    return messages


class LookingUp(keras.layers.Layer):
    """Adds rows of a table, which a function of its own looks up."""

    def build(self, shape):
        self.table = keras.layers.Embedding(16, 16)
        self.table.build(())
        self.look_up = tf.function(lambda: self.table(tf.range(16)))

    def call(self, x):
        return x + tf.reduce_sum(self.look_up(), 0)


class Normalizing(keras.Model):
    """Normalizes in a function that its step calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norm = keras.layers.BatchNormalization()
        self.norm.build((None, 3))
        self.function = tf.function(lambda x: self.norm(x, training=True))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self.function(self(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class NormedCell(keras.layers.Layer):
    """A recurrent cell that normalizes."""

    state_size = 4

    def build(self, shape):
        self.norm = keras.layers.BatchNormalization()
        self.norm.build((None, 4))

    def call(self, inputs, states, training=False):
        output = self.norm(inputs + states[0], training=training)
        return output, [output]


def looping() -> list:
    """Layers of which one normalizes in a loop of TensorFlow's."""
    return [keras.layers.Reshape((4, 4)), keras.layers.RNN(NormedCell())]


class Shuffling(keras.layers.Layer):
    """Shuffles rows in a function of its own."""

    def call(self, x, training=False):
        return tf.random.shuffle(x, seed=3) if training else x


@contextlib.contextmanager
def logged(level: int = logging.NOTSET):
    """What this package logs within the block."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("keras_par").addHandler(handler)
    before = logging.getLogger("keras_par").level
    logging.getLogger("keras_par").setLevel(level or before)
    try:
        yield messages
    finally:
        logging.getLogger("keras_par").removeHandler(handler)
        logging.getLogger("keras_par").setLevel(before)


def share_seeds(how: str) -> dict:
    """The next numbers of generators that stood apart, after what `kp.init` does with them."""
    import torch

    import keras_par as kp
    from keras_par.comm import world
    from keras_par.distribution import seeds

    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(kp.rank())
    tf.random.set_seed(seeds.UNSET_SEED)  # as where none is set
    with logged(logging.INFO) as messages:
        seeds.share(world.current(), how)
    numbers = [random.random(), np.random.uniform(), float(torch.rand(1)), seeds.tensorflow_seed()]
    return {"numbers": numbers, "messages": messages}


def normalized(distributed: bool) -> dict:
    """Weights after training with batch normalization, before dropout."""
    seed(distributed)
    with strategy_scope(distributed):
        model = compiled("sgd", network(keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)))
    model.fit(**arrays(65), verbose=0)
    return {"weights": [np.asarray(weight) for weight in model.get_weights()]}


def predictions(distributed: bool) -> dict:
    """Predictions of a model that draws while predicting, of whole and odd batches."""
    seed(distributed)
    with strategy_scope(distributed):
        inputs = keras.layers.Input((8,))
        model = keras.Model(inputs, Sampling()([inputs, keras.layers.Rescaling(0.1)(inputs)]))
        model.compile("sgd", "mse")
    x = rows(37)[0]
    return {"first": model.predict(x, batch_size=16, verbose=0), "second": model.predict(x, batch_size=8, verbose=0)}


def seeded_late(folder: str) -> list[str]:
    """What a package with a generator of its own gives that is imported behind `kp.init()`, twice."""
    import importlib
    import sys
    from pathlib import Path

    import keras_par as kp
    from keras_par.distribution.seeds import seed_at_import

    name = f"late_generator_{kp.rank()}"
    lines = "import random", "own = random.Random()", "def manual_seed(seed):", "    own.seed(seed)"
    (Path(folder) / f"{name}.py").write_text("\n".join(lines))
    before = list(sys.meta_path)
    sys.path.insert(0, folder)
    try:
        seed_at_import(name, 5)
        numbers = [importlib.import_module(name).own.random()]
        seed_at_import(name, 6)  # which comes too late
        numbers.append(importlib.import_module(name).own.random())
    finally:
        sys.path.remove(folder)
        sys.modules.pop(name, None)
    return [*numbers, sys.meta_path == before]
