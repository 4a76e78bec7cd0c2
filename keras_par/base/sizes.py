"""Sizes of memory as people write and read them."""

import math
import re

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def size(num_bytes: float) -> str:
    """In the unit that suits it, as "1.5 GiB"."""
    unit, factor = unit_of(num_bytes)
    return f"{short(num_bytes / factor)} {unit}"


def unit_of(num_bytes: float) -> tuple[str, int]:
    """The unit that suits an amount of memory, and its bytes."""
    return [(unit, factor) for unit, factor in UNITS.items() if num_bytes >= factor or factor == 1][-1]


def no_less(num_bytes: float) -> str:
    """As `size`, but rounded up, so that it is enough where `bytes_of` reads it."""
    unit, factor = next((pair for pair in UNITS.items() if num_bytes <= 999 * pair[1]), ("TiB", UNITS["TiB"]))
    number = num_bytes / factor
    step = 10.0 ** (math.floor(math.log10(number)) - 2)
    return f"{math.ceil(number / step) * step:.3g} {unit}"


def short(number: float) -> str:
    """Three digits, more of what is before the point."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def bytes_of(memory: str | float | None) -> float | None:
    """A memory such as "8GB", of 2^30 bytes each, in bytes.

    Raises:
        ValueError: it is none.
    """
    if memory is None or isinstance(memory, (int, float)):
        return memory
    found = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)i?B?", memory.strip(), re.IGNORECASE)
    number, unit = (memory, "") if found is None else found.groups()
    try:
        return float(number) * next(factor for name, factor in UNITS.items() if name[0] == (unit.upper() or "B"))
    except ValueError:
        raise ValueError(f"keras-par: memory={memory!r} is no size: write it as '8GB'.") from None
