"""Writes numbers for people, with their units."""

import math
from datetime import UTC, datetime

NBSP = "\N{NO-BREAK SPACE}"
LONGEST_TEXT = 4000


def significant(value: float, digits: int = 3) -> str:
    """`value` to some significant digits, without an exponent for ordinary numbers, "nan" for what is none."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "infinite"
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.{digits - 1}e}"
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(places, 0)}f}"


def step_time(seconds: float) -> str:
    """A short time, such as "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{significant(seconds / size)}{NBSP}{unit}"
    raise AssertionError


def duration(seconds: float) -> str:
    """A long time, such as "3 min 12 s"."""
    if seconds < 60:
        return f"{seconds:.1f}{NBSP}s"
    whole = round(seconds)
    names = next(
        names for names in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)) if whole >= names[1]
    )
    unit, size, part, part_size = names
    return f"{whole // size}{NBSP}{unit}{NBSP}{whole % size // part_size:02}{NBSP}{part}"


def percent(share: float) -> str:
    """A share from 0 to 1, such as "25.0 %"."""
    return f"{100 * share:.1f}{NBSP}%"


def date(time: float) -> str:
    """Unix seconds as a day and a time of day."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"


def clock(time: float) -> str:
    """Unix seconds as a time of day, UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%H:%M:%S}"


def plural(count: int, noun: str) -> str:
    """A count and its noun, such as "2 ranks"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clipped(text: str) -> str:
    """`text`, without its middle if it is very long."""
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]}\n[...]\n{text[-half:]}"
