"""What ranks do for the tests of autotune."""

import contextlib
import json
import sys

import keras
import numpy as np
from keras import layers

NUM_STEPS = 60
SIZES = (1.0, 0.0005, 0.0002)  # megabytes: all in one bucket, the two kernels in two, each variable in its own
SECONDS = dict(zip(SIZES, (0.5, 0.3, 0.4), strict=True))


def build(**options) -> tuple:
    """A small model under a strategy with these options."""
    import keras_par as kp

    keras.utils.set_random_seed(1)
    strategy = kp.DataParallel(fusion_mb=SIZES[0], **options)
    with strategy.scope():
        model = keras.Sequential([layers.Input((8,)), layers.Dense(12, "relu"), layers.Dense(8)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model, strategy


def data() -> dict:
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(4 * NUM_STEPS, 8)).astype("float32") for _ in range(2))
    return {"x": x, "y": y, "batch_size": 4, "verbose": 0}


@contextlib.contextmanager
def pretended_times(model):
    """Within it autotune believes that steps take the seconds above."""
    from keras_par.seam.call import autotune
    from keras_par.seam.models import binding

    now = [0.0]

    def clock() -> float:
        now[0] += SECONDS[binding.of(model).options.fusion_mb]
        return now[0]

    before = autotune.FUSION_MB, autotune.clock
    autotune.FUSION_MB, autotune.clock = SIZES[1:], clock
    try:
        yield
    finally:
        autotune.FUSION_MB, autotune.clock = before


def distance(model, twin) -> float:
    """The largest difference of two models' variables and optimizers."""
    states = [[np.asarray(each) for each in of.variables + of.optimizer.variables] for of in (model, twin)]
    return max(float(np.abs(a - b).max()) for a, b in zip(*states, strict=True))


def tune(path: str) -> dict:
    """Trains with autotune and without; what came of it."""
    import keras_par as kp

    twin, _ = build()
    twin.fit(**data(), epochs=3)
    model, strategy = build(autotune=path)
    with pretended_times(model):
        model.fit(**data(), epochs=3)
    again, _ = build(autotune=path)
    loaded = kp.load_strategy(path)
    with strategy.scope():
        later = keras.Sequential([layers.Input((8,)), layers.Dense(8)])
        later.compile("sgd", "mse")
    return {
        "size": kp.size(),
        "distance": distance(model, twin),
        "tuned": strategy.keras_par_options.fusion_mb,
        "is_over": strategy.keras_par_options.autotune is None,
        "again": again._keras_par_binding.options.fusion_mb,
        "again_is_over": again._keras_par_binding.options.autotune is None,
        "loaded": loaded.keras_par_options.fusion_mb,
        "later": later._keras_par_binding.options.fusion_mb,
        "num_collectives": len(kp.describe(model).collectives["train_step"]),
    }


def main() -> None:
    """In a job of its own."""
    import keras_par as kp

    model, strategy = build(autotune=sys.argv[1])
    with pretended_times(model):
        model.fit(**data(), epochs=3)
    twin, _ = build()
    twin.fit(**data(), epochs=3)
    options = strategy.keras_par_options
    result = [kp.rank(), kp.size(), options.fusion_mb, distance(model, twin)]
    print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
