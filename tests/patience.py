"""How long tests wait for what takes seconds on a quiet machine: so long that a busy one fails none of them."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds
WORK, QUIET_SECONDS = range(5_000_000), 0.12  # what a slow core sums in that time if nobody else wants it


def here(seconds: float) -> float:
    """How long so many seconds of a quiet machine are on this one, with what else it does now; never less."""
    begin = time.perf_counter()
    sum(WORK)
    return seconds * max(1.0, (time.perf_counter() - begin) / QUIET_SECONDS)


def comes_to_be(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """True once something is so, False if it is not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (is_so := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(is_so)
