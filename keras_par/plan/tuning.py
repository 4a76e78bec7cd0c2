"""Finds the fastest of some settings by letting training steps use them in turns."""

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TypeVar

Setting = TypeVar("Setting")

ROUNDS = 4
STEPS = 6  # that a setting is used for in each round; the first of them does not count
MARGIN = 0.02  # a smaller gain is not told from noise


def num_steps(num_settings: int) -> int:
    """How many steps `times` takes for that many settings."""
    return ROUNDS * STEPS * num_settings if num_settings > 1 else 0


def times(settings: Sequence[Setting], use: Callable[[Setting], None]) -> Generator[None, float, dict[Setting, float]]:
    """Lets each setting be used for some steps, round after round, so that a machine that drifts hits all alike.

    At each `yield` the caller takes a step and sends its seconds. In the first step after a change something may have
    to be made anew, so that its seconds do not count.

    Args:
        settings: to choose from; nothing is tried if there is only one.
        use: puts a setting into force.

    Returns:
        The median seconds of a step with each setting, empty if there is only one.
    """
    if len(settings) == 1:
        use(settings[0])
        return {}
    seconds: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for _ in range(ROUNDS):
        for setting, measured in seconds.items():
            use(setting)
            yield
            for _ in range(STEPS - 1):
                measured.append((yield))
    return {setting: statistics.median(measured) for setting, measured in seconds.items()}


def fastest(medians: Mapping[Setting, float]) -> Setting:
    """The setting with the shortest step; the first one unless another is faster by more than the margin."""
    first = next(iter(medians))
    best = min(medians, key=lambda setting: medians[setting])
    return best if medians[best] < (1 - MARGIN) * medians[first] else first
