"""What schedules here are built around: a number or another Keras schedule, asked for its rate and saved alike."""

from typing import Any, TypeAlias

import keras
from keras.optimizers.schedules import LearningRateSchedule

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
