"""What the ranks run for test_zero.py: trainings of which ranks with other rows divide a part, and what is where."""

import warnings
from typing import Any

import keras
import numpy as np

from keras_par.sharding.variable_views import is_sharded, sharded
from keras_par.sharding.zero_parts import has_own_part
from tests import tasks

MESH = {".*a/kernel": (None, "model"), ".*a/bias": ("model",)}
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "averaging and accumulating": lambda: keras.optimizers.AdamW(
        1e-2, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2
    ),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-2, momentum=0.9)),
    "lamb": lambda: keras.optimizers.Lamb(1e-2),
    "muon": lambda: keras.optimizers.Muon(1e-2),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-2),
    "of the user's": lambda: Largest(1e-2),
    "scaled lamb that averages": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Lamb(
            1e-2, use_ema=True, ema_overwrite_frequency=2, gradient_accumulation_steps=2, clipnorm=1.0
        )
    ),
}


class Largest(keras.optimizers.Optimizer):
    """Moves each variable by its momentum over the largest element of that."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.momentums = [self.add_variable_from_reference(variable, "momentum") for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum + gradient)
        step = momentum / (keras.ops.max(keras.ops.abs(momentum)) + 1e-7)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * step)


class Seen(keras.callbacks.Callback):
    """Counts variables of which this rank updates a part, or stores one, and shards and elements of its state."""

    def on_train_end(self, logs=None):
        optimizers = [each for each in vars(self.model).values() if isinstance(each, keras.optimizers.Optimizer)]
        self.parts = sum(map(has_own_part, self.model.trainable_variables))
        self.stored = len(sharded(self.model.trainable_variables))
        self.shards = sum(is_sharded(variable) for each in optimizers for variable in each.variables)
        self.state_size = sum(
            variable._value.shape.num_elements() for each in optimizers for variable in each.variables
        )
        self.adds_otherwise = any(each.clipnorm or each.global_clipnorm for each in optimizers)
        self.divided = [is_sharded(variable) for each in optimizers for variable in each.variables]
        names = [variable.name for each in optimizers for variable in each.variables]
        self.accumulates = any(name.endswith("gradient_accumulator") for name in names)


def train(name: str, **options) -> dict:
    """As `tasks.train`, and what `Seen` counts."""
    seen, fit = Seen(), keras.Model.fit

    def watched(self, *args, **kwargs):
        return fit(self, *args, callbacks=[seen], **kwargs)

    keras.Model.fit = watched
    try:
        # Ranks that make a part each of a weight need the same seed.
        return tasks.train(name, distributed=True, same_seed=options.get("zero") == 3, **options) | vars_of(seen)
    finally:
        keras.Model.fit = fit


def vars_of(seen: Seen) -> dict[str, Any]:
    names = ("parts", "stored", "shards", "state_size", "divided", "adds_otherwise", "accumulates")
    return {name: getattr(seen, name) for name in names}


def data() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {"x": generator.normal(size=(75, 8)).astype("float32"), "y": generator.integers(0, 7, 75)}


def strategy(mesh: tuple[int, int] | None, **options):
    import keras_par as kp

    if mesh is None:
        return kp.DataParallel(**options)
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(mesh, ["rows", "model"]))
    for pattern, axes in MESH.items():
        layout[pattern] = axes
    return kp.ModelParallel(layout_map=layout, **options)


def uneven(optimizer: str) -> keras.Model:
    """Dims that 3 or 4 ranks do not divide evenly."""
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(10, "relu", name="a"),
            keras.layers.Dense(7, name="b"),
        ]
    )
    model.compile(OPTIMIZERS[optimizer](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model: keras.Model, epochs: int = 2) -> dict:
    """Trains on, and returns weights, state, and what is divided."""
    seen = Seen()
    model.fit(**data(), batch_size=16, epochs=epochs, verbose=0, shuffle=False, callbacks=[seen])
    slots = [variable for variable in model.optimizer.variables if not variable.name.endswith("gradient_accumulator")]
    return {
        "weights": model.get_weights(),
        "slots": [(variable.name, np.asarray(variable.value)) for variable in slots],
        **vars_of(seen),
    }


def train_uneven(optimizer: str, mesh: tuple[int, int] | None = None, **options) -> dict:
    keras.utils.set_random_seed(7)
    with strategy(mesh, **options).scope():
        return fit(uneven(optimizer))


def change_stage(first: int, then: int) -> dict:
    """Trains with one stage, compiles the same optimizer under another, and goes on."""
    keras.utils.set_random_seed(7)
    with strategy(None, zero=first, zero_min_kb=0).scope():
        model = uneven("adam")
        fit(model, epochs=1)
    with strategy(None, zero=then, zero_min_kb=0).scope():
        model.compile(model.optimizer, model.loss)
        return fit(model, epochs=1)


def save_and_load(path: str, zero: int) -> tuple[dict, dict]:
    """State as it was trained, and as it is loaded from a file, which goes on to be trained."""
    keras.utils.set_random_seed(7)
    with strategy(None, zero=zero, zero_min_kb=0).scope():
        model = uneven("adam")
        fit(model)
        model.save(path)
        loaded = keras.models.load_model(path)
        return fit(model), fit(loaded)


def own_loop(**options) -> dict:
    """Steps of a loop by hand, which hands whole sums of gradients to the optimizer."""
    import tensorflow as tf

    import keras_par as kp

    keras.utils.set_random_seed(7)
    with strategy(None, **options).scope():
        model = uneven("adam")
        fit(model, epochs=1)
    reducer = kp.GradientReducer()
    x, y = (tf.constant(each[kp.rank() :: kp.size()][:8]) for each in data().values())

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True))
        model.optimizer.apply(reducer(tape.gradient(loss, model.trainable_variables)), model.trainable_variables)

    for _ in range(3):
        step()
    return {"weights": model.get_weights(), "slots": []}


def sent(**options) -> list[tuple[str, int]]:
    """The collectives of a step, and the bytes that each sends over a rank's link, as rings of N ranks do."""
    import keras_par as kp

    keras.utils.set_random_seed(7)
    with strategy(None, **options).scope():
        model = uneven("adam")
        fit(model, epochs=1)
    described = kp.describe(model)
    size = kp.size()
    share = {"all_reduce": 2 * (size - 1) / size, "reduce_scatter": (size - 1) / size, "all_gather": size - 1}
    return [(call.kind, round(call.num_bytes * share[call.kind])) for call in described.collectives["train_step"]]


def sent_between(**options) -> dict[str, list[int]]:
    """The bytes that a rank gives to the collectives of a step, by kind."""
    import keras_par as kp

    keras.utils.set_random_seed(7)
    with strategy(None, **options).scope():
        model = uneven("adam")
        fit(model, epochs=1)
    found: dict[str, list[int]] = {}
    for call in kp.describe(model).collectives["train_step"]:
        found.setdefault(call.kind, []).append(call.num_bytes)
    return found


def dealt(**options) -> list[int]:
    """This rank's share of eight rows."""
    import tensorflow as tf

    import keras_par as kp

    with strategy(None, **options).scope():
        return [int(row) for row in kp.data.shard(tf.data.Dataset.range(8))]


def warned(**options) -> list[str]:
    """What is said of options when a strategy is made."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        strategy(None, **options)
    return [str(each.message) for each in said]


def begin_from_file(path: str, zero: int) -> dict:
    """All ranks read the weights of a file, and rank 0 alone the optimizer's state."""
    import keras_par as kp

    keras.utils.set_random_seed(7)
    with strategy(None, zero=zero, zero_min_kb=0).scope():
        model = keras.models.load_model(path, compile=kp.rank() == 0)
        if kp.rank() > 0:
            model.compile(OPTIMIZERS["adam"](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return fit(model)


def train_alone() -> dict:
    """What a rank may do by itself with a model whose state is divided."""
    import keras_par as kp

    with strategy(None, zero=1, zero_min_kb=0).scope():
        model = uneven("adam")
        fit(model)
    with kp.independent():
        loss = model.evaluate(**data(), verbose=0)
        try:
            model.fit(**data(), verbose=0)
        except ValueError as error:
            return {"loss": loss, "said": str(error)}
    return {"loss": loss, "said": ""}
