"""Reads what a rank's program notes for its launcher, which may be anything: it is the user's process that writes."""

import json
from typing import Any

Fields = dict[str, tuple[type, ...]]  # what a note has at least

NUMBER: tuple[type, ...] = (int, float)
TEXT: tuple[type, ...] = (str,)
# The kinds that are kept for the report, and the file of each.
KEPT = {"epoch": "epochs.jsonl", "about": "about.jsonl"}
# The kinds that the launcher is told of, and what it reads of each.
TOLD: dict[str, Fields] = {
    "first_step": {"time": NUMBER},
    "resume": {"name": TEXT, "text": TEXT},
    "stopped": {"text": TEXT},
    "checkpoint": {"name": TEXT, "taken": NUMBER, "steps": NUMBER, "text": TEXT, "in_memory": (bool,)},
}
FAILURE: dict[str, Fields] = {
    "failure": {"time": NUMBER, "message": TEXT, "is_consequence": (bool,), "on_all_ranks": (bool,), "marks": NUMBER}
}
FIELDS: dict[str, Fields] = {kind: {} for kind in KEPT} | TOLD | FAILURE


def read(line: str) -> tuple[str, dict[str, Any]] | None:
    """The kind and the content of a note; None for what is none, such as a line that was cut."""
    try:
        note = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kind = note.pop("note", None) if isinstance(note, dict) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        return None
    is_whole = all(isinstance(note.get(name), types) for name, types in FIELDS[kind].items())
    return (kind, note) if is_whole else None
