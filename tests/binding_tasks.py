"""Models that were made, compiled or loaded before the strategy was set, or while it was forgotten."""

import contextlib
import threading

import keras
import numpy as np

from tests.cases import arrays, rows
from tests.tasks import build, seed

BEFORE = ("built", "compiled", "not built", "loaded", "trained alone", "cleared", "thread", "never compiled")


def network() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(16, "tanh"), keras.layers.Dense(3)])


def set_strategy(distributed: bool) -> None:
    if distributed:
        import keras_par as kp

        keras.distribution.set_distribution(kp.DataParallel())


def made(which: str, distributed: bool, path: str) -> keras.Model:
    """A compiled model, made in an order that has nothing to do with the strategy's."""
    options = {"optimizer": keras.optimizers.Adam(1e-2), "loss": "sparse_categorical_crossentropy"}
    if which == "cleared":
        set_strategy(distributed)
        keras.utils.clear_session()
        return build(**options)
    if which == "thread":
        set_strategy(distributed)
        found: list[keras.Model] = []
        thread = threading.Thread(target=lambda: found.append(build(**options)))
        thread.start()
        thread.join()
        return found[0]
    if which == "built":
        model = network()
        model.build((None, 8))
        set_strategy(distributed)
        model.compile(**options)
        return model
    model = network() if which == "not built" else build(**options)
    model.compile(**options)
    if which == "loaded":
        if not distributed:
            model.save(path)
        model = keras.saving.load_model(path)
    if which == "trained alone":
        model.optimizer.build(model.trainable_variables)
        if distributed:
            import keras_par as kp

            with kp.independent():
                model.fit(*rows(16 + 16 * kp.rank()), verbose=0)  # other steps on each rank
                if kp.rank() == 0:
                    model.evaluate(*rows(16), verbose=0)
        else:
            model.fit(*rows(16), verbose=0)
    set_strategy(distributed)
    return model


def train(which: str, distributed: bool, path: str) -> list:
    """The weights of a model made like this, after it was trained; each rank begins with other ones."""
    seed(distributed)
    model = made(which, distributed, path)
    keras.utils.set_random_seed(3)
    model.fit(**arrays(), verbose=0)
    return model.get_weights()


def use_otherwise(methods: list[str], distributed: bool) -> list:
    """What the first call of each other method gives, of models that the strategy has not seen."""
    (x, y), found = rows(21), []
    for method in methods:
        keras.distribution.set_distribution(None)
        seed(distributed)
        model = network()
        model.build((None, 8))
        if method != "never compiled":
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        set_strategy(distributed)
        calls = {
            "evaluate": lambda model: model.evaluate(x, y, batch_size=8, verbose=0),
            "train_on_batch": lambda model: model.train_on_batch(x, y),
            "predict_on_batch": lambda model: model.predict_on_batch(x),
        }
        found.append(calls.get(method, lambda model: model.predict(x, batch_size=8, verbose=0))(model))
    return found


def without_strategy(methods: list[str]) -> list[str]:
    """What is said of a model that is used on all ranks though nobody has set a strategy."""
    model, (x, y), said = build(), rows(16), []
    for method in methods:
        call = getattr(model, method)
        try:
            call(x) if method.startswith("predict") else call(x, y)
            said.append("nothing")
        except ValueError as error:
            said.append(str(error))
    return said


def strategy_on_rank_0() -> None:
    """Only one rank has set a strategy, after a fit without one that has failed on both."""
    import keras_par as kp

    strategy = kp.DataParallel()
    with contextlib.suppress(ValueError):
        build().fit(*rows(16), verbose=0)
    if kp.rank() == 0:
        keras.distribution.set_distribution(strategy)
    build().fit(*rows(16), verbose=0)


def independent() -> dict:
    """A bound model used by one rank alone, between calls that all ranks make together."""
    import keras_par as kp

    seed(True)
    keras.distribution.set_distribution(kp.DataParallel())
    model = build(metrics=["accuracy"])
    x, y = rows(32)
    model.fit(x, y, batch_size=8, verbose=0)
    together = [model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]
    alone = None
    if kp.rank() == 0:
        with kp.independent():
            assert keras.distribution.distribution() is None
            alone = [model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]
    model.fit(x, y, batch_size=8, verbose=0)
    with kp.independent():
        own = build(units=8 + kp.rank())
        own.fit(x[: 16 + kp.rank()], y[: 16 + kp.rank()], verbose=0)
    return {
        "size": kp.size(),
        "together": together,
        "alone": alone,
        "weights": model.get_weights(),
        "own": [weight.shape for weight in own.get_weights()],
    }


def independent_in_callback() -> list:
    """Losses that a callback on rank 0 finds in the middle of `fit`, next to those of the ranks together."""
    import keras_par as kp

    seed(True)
    keras.distribution.set_distribution(kp.DataParallel())
    model, (x, y), found = build(), rows(32), []

    def look(epoch, logs):
        if kp.rank() == 0:
            with kp.independent():
                found.append(model.evaluate(x, y, verbose=0))
        found.append(model.evaluate(x, y, verbose=0))

    model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)])
    return found


def built_before_a_layout_map(divides: bool) -> list:
    """A model that is older than a model-parallel strategy, which divides it, or its mesh divides nothing."""
    import keras_par as kp

    seed(False)
    model = network()
    model.build((None, 8))
    mesh = keras.distribution.DeviceMesh((1, 2) if divides else (2, 1), ("batch", "model"))
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map[".*dense.*kernel"] = (None, "model")
    keras.distribution.set_distribution(kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch"))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras.utils.set_random_seed(3)
    model.fit(**arrays(), verbose=0)
    return [np.asarray(weight) for weight in model.get_weights()]


def train_plainly() -> list:
    """What one process makes of that model."""
    seed(False)
    model = network()
    model.build((None, 8))
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras.utils.set_random_seed(3)
    model.fit(**arrays(), verbose=0)
    return model.get_weights()
