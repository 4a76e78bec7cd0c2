"""How long tests wait for what takes seconds on a quiet machine: so long that a busy one fails none of them."""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds


def comes_to_be(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """True once something is so, False if it is not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (is_so := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(is_so)
