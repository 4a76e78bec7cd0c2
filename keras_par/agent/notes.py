"""Reads the notes of a rank's program, whose pipe anything may have been written into."""

import json
from collections.abc import Mapping
from typing import Any

from keras_par.base.heartbeat_page import CALLS

Note = dict[str, Any]
LARGEST = 1e15
KEPT = {"epoch": "epochs.jsonl", "about": "about.jsonl"}  # kinds that the report reads, and the file of each
TOLD = ("first_step", "resume", "stopped", "checkpoint")  # kinds that the launcher is told of


# What a note of any kind says, and one of each besides: of which type, or one of what.
ALWAYS: Mapping[str, Any] = {"time": float, "call": CALLS, "epoch": int, "step": int, "marks": int}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "first_step": {},
    "about": {},
    "epoch": {"steps": int, "logs": dict},
    "leaving": {"user_line": str},
    "failure": {"message": str, "is_consequence": bool, "on_all_ranks": bool},
    "resume": {"text": str, "name": str},
    "stopped": {"text": str},
    "warning": {"text": str},
    "checkpoint": {"text": str, "name": str, "in_memory": bool, "taken": float, "steps": int},
}


def fits(value: Any, kind: Any) -> bool:
    """True for a value of a type, numbers not negative and not too large, or for one of several values."""
    if kind not in (int, float):
        return value in kind if isinstance(kind, tuple) else isinstance(value, kind)
    return type(value) in (int, kind) and 0 <= value <= LARGEST


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
    wanted = {**ALWAYS, **KINDS[kind]}
    return (kind, content) if all(name in content and fits(content[name], of) for name, of in wanted.items()) else None
