"""Reads the notes of a rank's program, whose pipe anything may have been written into."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from keras_par.base.heartbeat_page import CALLS

Note = dict[str, Any]
LARGEST = 1e15
KEPT = {"epoch": "epochs.jsonl", "about": "about.jsonl"}  # kinds that the report reads, and the file of each
TOLD = ("first_step", "resume", "stopped", "checkpoint")  # kinds that the launcher is told of


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST


def is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value)


Check = Callable[[Any], bool]
ALWAYS: dict[str, Check] = {"time": is_number, "call": lambda value: value in CALLS}
ALWAYS |= {"epoch": is_count, "step": is_count, "marks": is_count}
# What a note of each kind says besides.
KINDS: Mapping[str, dict[str, Check]] = {
    "first_step": {},
    "about": {},
    "epoch": {"steps": is_count, "logs": lambda value: isinstance(value, dict)},
    "leaving": {"user_line": is_text},
    "failure": {"message": is_text, "is_consequence": is_flag, "on_all_ranks": is_flag},
    "resume": {"text": is_text, "name": is_text},
    "stopped": {"text": is_text},
    "warning": {"text": is_text},
    "checkpoint": {"text": is_text, "name": is_text, "in_memory": is_flag, "taken": is_number, "steps": is_count},
}


def parsed(line: str) -> tuple[str, Note] | None:
    """The kind and the content of a note, None for a line that is none, as one that was cut."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    kind = content.pop("note", None)
    if not isinstance(kind, str) or kind not in KINDS:
        return None
    checks = ALWAYS | KINDS[kind]
    return (kind, content) if all(name in content and fits(content[name]) for name, fits in checks.items()) else None
