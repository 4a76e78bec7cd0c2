"""What ranks and the plain process do for the tests of batches of several sizes."""

import keras
import numpy as np

from tests.cases import in_dtype
from tests.tasks import seed, strategy_scope


def two_outputs() -> keras.Model:
    """A model whose outputs have losses of their own."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    outputs = [keras.layers.Dense(units, name=name)(hidden) for units, name in ((1, "a"), (3, "b"))]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[0.3, 2.0], metrics=[["mae"], ["mse"]])
    return model


def rows(num_rows: int) -> tuple:
    generator = np.random.default_rng(num_rows)
    return generator.normal(size=(num_rows, 4)), (
        generator.normal(size=(num_rows, 1)),
        generator.normal(size=(num_rows, 3)),
    )


def in_turn(distributed: bool) -> dict:
    """Logs and weights of one model that is trained and tested by full batches of one size after another."""
    seed(distributed)
    x, y = rows(64)
    logs = []
    with in_dtype("float64"), strategy_scope(distributed):
        model = two_outputs()
        for size in (8, 32, 16, 64):
            logs.append(model.fit(x, y, batch_size=size, shuffle=False, verbose=0).history)
            tested = model.evaluate(x, y, batch_size=size, verbose=0, return_dict=True)
            logs.append({name: [value] for name, value in tested.items()})
    return {"logs": logs, "weights": model.get_weights()}


def of_a_generator(num_rows: int, size: int, distributed: bool) -> dict:
    """Logs and weights after two epochs of a generator whose last batch is smaller, and how often the step was traced.

    The number of steps is given: one process counts a step too many where data ends unannounced.
    """
    seed(distributed)
    x, y = rows(num_rows)
    steps = -(-num_rows // size)

    def batches():
        for begin in range(0, 2 * steps * size, size):
            begin %= steps * size
            yield x[begin : begin + size], tuple(each[begin : begin + size] for each in y)

    traced: list = []
    with in_dtype("float64"), strategy_scope(distributed):
        model = two_outputs()
        call = model.call
        model.call = lambda *args, **kwargs: traced.append(args) or call(*args, **kwargs)
        history = model.fit(batches(), epochs=2, steps_per_epoch=steps, verbose=0).history
    return {"logs": [history], "weights": model.get_weights(), "traced": len(traced)}
