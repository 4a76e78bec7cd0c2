"""Says what was meant perhaps, where something is not known."""

import difflib
from collections.abc import Sequence
from typing import Any


def instead(given: Any, known: Sequence) -> str:
    """What to write instead of `given`."""
    names = [shown(value) for value in known]
    alike = difflib.get_close_matches(str(given).lower(), [str(value).lower() for value in known], 1)
    if alike:
        return f"the nearest is {names[[str(value).lower() for value in known].index(alike[0])]}: correct it"
    return f"use {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f"use {names[0]}"


def shown(value: Any) -> str:
    """A value as TOML has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)
