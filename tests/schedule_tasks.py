"""What the pools run for tests/test_schedules.py; the plain process computes its rates by NumPy."""

import keras

from tests.tasks import build, seed, strategy_scope

START, BASE, WARMUP_STEPS = 0.01, 0.1, 6  # WARMUP_STEPS end within the second of 4 epochs of 5 steps


def rate(step: int, size: int) -> float:
    """The rate of a step by Goyal et al.: a ramp to `size` times BASE, then a tenth of it from step 12 on."""
    target = size * BASE * (0.1 if step > 12 else 1.0)
    return START + (size * BASE - START) * step / WARMUP_STEPS if step < WARMUP_STEPS else target


def train_scheduled(distributed: bool, size: int) -> dict:
    """Weights after 20 steps at those rates: on ranks by schedules, in the plain process by setting each rate."""
    from tests.cases import arrays

    seed(distributed)
    callbacks = []
    if distributed:
        import keras_par as kp

        assert kp.size() == size
        steps = keras.optimizers.schedules.PiecewiseConstantDecay([12], [BASE, 0.1 * BASE])
        schedule = kp.schedules.WarmUp(kp.schedules.scaled(steps), WARMUP_STEPS, start=START)
        with strategy_scope(True):
            model = build(optimizer=keras.optimizers.SGD(schedule, momentum=0.9))
    else:
        model = build(optimizer=keras.optimizers.SGD(1.0, momentum=0.9))

        def set_rate(batch, logs=None):
            model.optimizer.learning_rate = rate(int(model.optimizer.iterations), size)

        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_begin=set_rate)]
    model.fit(**arrays(), verbose=0, callbacks=callbacks)
    return {"weights": model.get_weights(), "rate": float(model.optimizer.learning_rate)}


def scaled_rates(options: list[dict]) -> list[list[float]]:
    """`scaled` of a number, and of a schedule at steps 0 and 100, with these options."""
    import keras_par as kp

    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.5)
    schedules = [kp.schedules.scaled(decay, **each) for each in options]
    return [
        [kp.schedules.scaled(0.1, **each), float(schedule(0)), float(schedule(100))]
        for each, schedule in zip(options, schedules, strict=True)
    ]


def saved_and_loaded(path: str) -> dict:
    """The schedule of a model that rank 0 saved and all ranks loaded, and what training on gives both."""
    import keras_par as kp
    from tests.cases import rows

    x, y = rows(32)
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    seed(True)
    with strategy_scope(True):
        schedule = kp.schedules.WarmUp(kp.schedules.scaled(decay, "sqrt"), 6, start=0.03)
        model = build(optimizer=keras.optimizers.SGD(schedule))
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        if kp.rank() == 0:
            model.save(path)
        kp.barrier()
        loaded = keras.models.load_model(path)
    before = float(loaded.optimizer.learning_rate)
    for each in (model, loaded):
        each.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    return {
        "rate": before,
        "config": loaded.optimizer._learning_rate.get_config() == schedule.get_config(),
        "model": model.get_weights(),
        "loaded": loaded.get_weights(),
    }
