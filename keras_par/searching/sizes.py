"""Sizes of memory as people write and read them."""

import math
import re

UNITS = {"": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def size(num_bytes: float) -> str:
    """In the unit that suits it, as "1.50 GB"."""
    fitting = [(unit, factor) for unit, factor in UNITS.items() if unit and num_bytes >= factor] or [("KB", 2**10)]
    unit, factor = fitting[-1]
    return f"{short(num_bytes / factor)} {unit}"


def no_less(num_bytes: float) -> str:
    """As `size`, but rounded up, so that it is enough where `bytes_of` reads it."""
    units = [(unit, factor) for unit, factor in UNITS.items() if unit]
    unit, factor = next((pair for pair in units if num_bytes <= 999 * pair[1]), units[-1])
    number = num_bytes / factor
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step) * step:.3g} {unit}"


def short(number: float) -> str:
    """Three digits, more of what is before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def bytes_of(memory: str | float | None) -> float | None:
    """A memory such as "8GB" in bytes.

    Raises:
        ValueError: it is none.
    """
    if memory is None or isinstance(memory, (int, float)):
        return memory
    found = re.fullmatch(r"([0-9.]+)\s*([KMGT]?i?B?)", memory.strip(), re.IGNORECASE)
    unit = "" if found is None else found[2].upper().replace("I", "")
    unit = unit if unit in UNITS else f"{unit}B" if f"{unit}B" in UNITS else ""
    try:
        return float(memory if found is None else found[1]) * UNITS[unit]
    except ValueError:
        raise ValueError(f"keras-par: memory={memory!r} is no size: write it as '8GB'.") from None
