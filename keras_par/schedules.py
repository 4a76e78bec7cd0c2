"""Learning rates for several ranks: scaled by their number, and climbing there, since large batches start badly."""

import math
import numbers
from typing import Any, Literal, TypeAlias

import keras
from keras.optimizers.schedules import LearningRateSchedule

from keras_par.distribution import runtime

__all__ = ["Scaled", "WarmUp", "scaled"]

Rate: TypeAlias = float | LearningRateSchedule


def rate_at(rate: Rate, step):
    """The learning rate of `rate` at `step`, in Keras's float type."""
    value = rate(step) if isinstance(rate, LearningRateSchedule) else rate
    return keras.ops.cast(value, keras.config.floatx())


def to_config(rate: Rate) -> Any:
    """`rate` as JSON can carry it."""
    return keras.optimizers.schedules.serialize(rate) if isinstance(rate, LearningRateSchedule) else float(rate)


def from_config(config: Any) -> Rate:
    """What `to_config` was given."""
    return keras.optimizers.schedules.deserialize(config) if isinstance(config, dict) else config


Rule = Literal["linear", "sqrt"]


def scaled(learning_rate: Rate, rule: Rule = "linear", size: int | None = None) -> Rate:
    """The learning rate, or schedule, of one rank made that of `size` ranks.

    Example:
        ```python
        kp.init()
        batch_size = 32 * kp.size()
        rate = kp.schedules.scaled(0.1)
        rate  # -> 0.2
        optimizer = keras.optimizers.SGD(rate)
        ```

    It applies where the batch grows with the number of ranks. A batch in `fit` is the whole job's, so that is when
    you write `batch_size=32 * kp.size()`, or batch data that is sharded, such as `kp.data.shard`'s, by a number of
    rows a rank. With the batch size of one process, keep its learning rate.

    Args:
        learning_rate: a number, or any Keras schedule.
        rule: "linear" multiplies by `size`, as `lr * hvd.size()` does: "when the minibatch size is multiplied by k,
            multiply the learning rate by k" (Goyal et al. 2017, arXiv:1706.02677, section 2.1, for SGD; together
            with `WarmUp`). "sqrt" multiplies by its square root, which keeps the variance of an update (Krizhevsky
            2014, arXiv:1404.5997, section 5), and suits Adam and its like (Malladi et al. 2022, arXiv:2205.10287).
        size: by how much the batch has grown; None for the number of ranks.

    Returns:
        A number for a number, a schedule for a schedule. A saved schedule keeps the factor it was made with.

    Raises:
        ValueError: `rule` is unknown, or `size` less than 1.
        RuntimeError: `size` is None and `kp.init()` was not called.

    Costs no collective.
    """
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"keras-par: schedules.scaled(rule={rule!r}) is unknown, use 'linear' or 'sqrt'.")
    size = runtime.size() if size is None else size
    if size < 1:
        raise ValueError(f"keras-par: schedules.scaled(size={size}) must be at least 1 rank.")
    factor = float(size) if rule == "linear" else math.sqrt(size)
    return Scaled(learning_rate, factor) if isinstance(learning_rate, LearningRateSchedule) else learning_rate * factor


@keras.saving.register_keras_serializable(package="keras_par")
class Scaled(LearningRateSchedule):
    """`schedule` times `factor`, at each step; `kp.schedules.scaled` makes it of a schedule.

    Example:
        ```python
        decay = keras.optimizers.schedules.CosineDecay(0.25, decay_steps=100)
        rate = kp.schedules.Scaled(decay, factor=2.0)
        optimizer = keras.optimizers.SGD(rate)
        float(rate(0))  # -> 0.5
        ```

    It can be saved with a model, and keeps the factor. To load such a model, first `import keras_par.schedules`.

    Args:
        schedule: a learning rate, or any Keras schedule.
        factor: by which its rate is multiplied.
        name: of the schedule.

    Costs no collective.
    """

    def __init__(self, schedule: Rate, factor: float, name: str = "Scaled"):
        super().__init__()
        self.schedule, self.factor, self.name = schedule, factor, name

    def __call__(self, step):
        """The learning rate of a step, a scalar; steps count from 0."""
        return rate_at(self.schedule, step) * self.factor

    def get_config(self):
        """What `from_config` makes the same schedule of, as JSON can carry it."""
        return {"schedule": to_config(self.schedule), "factor": float(self.factor), "name": self.name}

    @classmethod
    def from_config(cls, config):
        """The schedule of which `get_config` gave this."""
        return cls(**{**config, "schedule": from_config(config["schedule"])})


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
