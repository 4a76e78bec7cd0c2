"""A learning rate that climbs in a line to the rate or schedule it leads to, because a large batch starts badly."""

import numbers

import keras
from keras.optimizers.schedules import LearningRateSchedule

from keras_par.schedules.target import Rate, from_config, rate_at, to_config


@keras.saving.register_keras_serializable(package="keras_par")
class WarmUp(LearningRateSchedule):
    """Climbs from `start` to `target` in `warmup_steps` steps, then follows `target`.

    Example:
        ```python
        kp.init()
        rate = kp.schedules.scaled(0.25)  # 0.25 for each rank
        schedule = kp.schedules.WarmUp(rate, warmup_steps=10, start=0.25)
        optimizer = keras.optimizers.SGD(schedule)
        [float(schedule(step)) for step in (0, 5, 10, 100)]  # -> [0.25, 0.375, 0.5, 0.5]
        ```

    This is the gradual warm-up of Goyal et al. 2017 (arXiv:1706.02677), section 2.2, and what Horovod's
    `LearningRateWarmupCallback` does, but at each step and in the optimizer: the rate of step t, counted from 0, is
    start + (target(warmup_steps) - start) t / warmup_steps while t < warmup_steps, and target(t) from then on. A
    schedule as `target` counts from the first step too, warm-up included.

    Steps are the optimizer's iterations; with `gradient_accumulation_steps` those are micro-batches. To load a model
    that was saved with it, first `import keras_par.schedules`.

    Args:
        target: a learning rate, or any Keras schedule.
        warmup_steps: number of steps until `target` is reached.
        start: the rate of the first step. Goyal et al. start from the rate of one rank.
        name: of the schedule.

    Raises:
        ValueError: `target` is of another kind, or `warmup_steps` is not at least 1.

    Costs no collective.
    """

    def __init__(self, target: Rate, warmup_steps: int, start: float = 0.0, name: str = "WarmUp"):
        super().__init__()
        if not isinstance(target, (numbers.Real, LearningRateSchedule)):
            raise ValueError(f"keras-par: WarmUp(target={target!r}) must be a number or a Keras LearningRateSchedule.")
        if warmup_steps < 1:
            raise ValueError(f"keras-par: WarmUp(warmup_steps={warmup_steps}) must be at least 1 step.")
        self.target, self.warmup_steps, self.start, self.name = target, warmup_steps, start, name

    def __call__(self, step):
        """The learning rate of a step, a scalar; steps count from 0."""
        dtype = keras.config.floatx()
        start = keras.ops.cast(self.start, dtype)
        done = keras.ops.cast(step, dtype) / self.warmup_steps
        ramp = start + (rate_at(self.target, self.warmup_steps) - start) * done
        return keras.ops.where(step < self.warmup_steps, ramp, rate_at(self.target, step))

    def get_config(self):
        """What `from_config` makes the same schedule of, as JSON can carry it."""
        return {
            "target": to_config(self.target),
            "warmup_steps": int(self.warmup_steps),
            "start": float(self.start),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        """The schedule of which `get_config` gave this."""
        return cls(**{**config, "target": from_config(config["target"])})
