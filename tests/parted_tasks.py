"""Trainings whose ranks part, or would: by what they compiled, by what a step assigns, by what a callback does."""

import keras
import numpy as np
import tensorflow as tf

from tests.cases import crossentropy, network, rows
from tests.tasks import build, strategy_scope

COMPILED = {
    "optimizer's beta": lambda rank: {"optimizer": keras.optimizers.Adam(1e-2, beta_1=0.9 - 0.1 * rank)},
    "optimizer's clipping": lambda rank: {"optimizer": keras.optimizers.SGD(0.1, clipnorm=1.0 + rank)},
    "optimizer's decay": lambda rank: {"optimizer": keras.optimizers.AdamW(0.1, weight_decay=0.1 * (1 + rank))},
    "optimizer's kind": lambda rank: {"optimizer": [keras.optimizers.SGD, keras.optimizers.Adam][rank](0.1)},
    "schedule": lambda rank: {
        "optimizer": keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 100 + rank))
    },
    "inner optimizer": lambda rank: {
        "optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.1 * rank))
    },
    "loss": lambda rank: {"loss": [crossentropy(), "mse"][rank]},
    "loss's option": lambda rank: {"loss": crossentropy(reduction=["sum", "mean"][rank])},
    "loss weights": lambda rank: {"loss_weights": [1.0 + rank]},
    "function": lambda rank: {"loss": lambda y, p: keras.ops.mean(keras.ops.square(p - [1.0, 2.0][rank]), -1)},
    "constant": lambda rank: {"loss": [lambda y, p: keras.ops.sum(p, -1), lambda y, p: 2 * keras.ops.sum(p, -1)][rank]},
}


def compile_otherwise(which: str) -> None:
    """Trains models that the ranks compiled in different ways."""
    import keras_par as kp

    with strategy_scope(True):
        model = build(**COMPILED[which](kp.rank()))
    model.fit(*rows(16), batch_size=8, verbose=0)


def fit_otherwise(which: str) -> None:
    """Calls fit with arguments of its own on each rank."""
    import keras_par as kp

    with strategy_scope(True):
        model = build()
    arguments = {
        "class weight": {"class_weight": {0: 1.0, 1: 1.0, 2: 1.0 + kp.rank()}},
        "shuffle": {"shuffle": kp.rank() == 0},
    }[which]
    model.fit(*rows(16), batch_size=8, verbose=0, **arguments)


def compile_alike() -> int:
    """Trains with objects that are other ones on each rank, but say the same."""
    import keras_par as kp

    loss = keras.losses.MeanSquaredError(name=f"loss_of_rank_{kp.rank()}")
    for _ in range(kp.rank()):
        keras.optimizers.Adam()  # so that the next one has another name
    with strategy_scope(True):
        model = build(
            optimizer=keras.optimizers.Adam(float("nan") if kp.rank() else 0.1, name=f"adam_of_rank_{kp.rank()}"),
            loss=loss,
            loss_weights=np.array([0.5]).tolist(),
        )
    model.fit(np.ones((16, 8)), np.ones((16, 3)), batch_size=8, verbose=0)
    return kp.size()


class Assigns(keras.Model):
    """Moves a weight by this rank's rows."""

    def __init__(self):
        super().__init__()
        self.network = network()

    def call(self, x):
        return self.network(x)

    def train_step(self, data):
        weight = self.network.trainable_variables[2]
        weight.assign_add(tf.fill(weight.shape, tf.reduce_mean(data[0])))
        return {}


def part(which: str) -> None:
    """Trains while something changes the weights of one rank."""
    import keras_par as kp

    with strategy_scope(True, broadcast_variables=which != "no broadcast"):
        keras.utils.set_random_seed(1)
        model = Assigns() if which == "step" else build()
        if which == "step":
            model.build((None, 8))
            model.compile("sgd")

    def change(*_, **__):
        if kp.rank() == 1:
            model.trainable_variables[1].assign_add(np.full(16, 1e-7))

    where = {"callback": "on_epoch_end", "last callback": "on_train_end", "no broadcast": "on_train_batch_end"}
    callbacks = [keras.callbacks.LambdaCallback(**{where[which]: change})] if which in where else []
    model.fit(*rows(16), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)


def begin_apart() -> list:
    """Trains ranks that begin with other weights and are to keep them."""
    import keras_par as kp

    keras.utils.set_random_seed(kp.rank())
    with strategy_scope(True, broadcast_variables=False):
        model = build()
    model.fit(*rows(16), batch_size=8, epochs=2, verbose=0)
    return model.get_weights()


def train_into_nan() -> list:
    """Trains on numbers that are none, which weights become at once."""
    with strategy_scope(True):
        model = build()
    x, y = rows(16)
    model.fit(np.full_like(x, np.nan), y, batch_size=8, verbose=0)
    return model.get_weights()


def part_in_one_number(num_small: int, epochs: int) -> dict:
    """Changes one number of many on rank 1; how many epochs began until all were told, and how many variables are."""
    import keras_par as kp

    with strategy_scope(True):
        small = [keras.layers.Dense(1) for _ in range(num_small)]
        model = keras.Sequential([keras.layers.Input((600,)), keras.layers.Dense(600), *small])
        model.compile("sgd", "mse")
    begun = []

    class Changes(keras.callbacks.Callback):
        every_rank_writes = True

        def on_epoch_begin(self, epoch, logs=None):
            begun.append(epoch)
            if epoch == 0 and kp.rank() == 1:
                kernel = np.array(model.layers[0].kernel)
                kernel[-1, -1] += 1
                model.layers[0].kernel.assign(kernel)

    said = ""
    try:
        model.fit(np.zeros((2, 600)), np.zeros((2, 1)), batch_size=2, epochs=epochs, verbose=0, callbacks=[Changes()])
    except RuntimeError as error:
        said = str(error)
    return {"said": said, "epochs": len(begun), "variables": len(model.trainable_variables), "size": kp.size()}
