"""Finds in a rank's output what a terminal is better without: bars that are overwritten, and TensorFlow's chatter."""

import re

OVERWRITE = re.compile(r"[\r\b]+")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and movements of the cursor
# What TensorFlow's C++ says at level INFO, in its present and its former manner, with the lines that belong to it.
CHATTER = re.compile(
    r"I\d{4} \d\d:\d\d:\d\d\.\d+ |I0000 |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I |"
    r"WARNING: All log messages before absl::InitializeLog\(\)|To enable the following instructions:"
)


def is_bar(line: str) -> bool:
    """True for a line that goes back to its begin, as progress bars do."""
    return "\r" in line.rstrip("\r\n") or "\b" in line


def whole_lines(text: str) -> list[str]:
    """The lines without their ends; unlike `str.splitlines`, a carriage return alone ends none."""
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def settled(line: str) -> str:
    """What a terminal shows in the end of a line that was overwritten."""
    parts = [part for part in OVERWRITE.split(line.rstrip("\r\n")) if CODES.sub("", part).strip()]
    return parts[-1].rstrip() if parts else ""


def without_codes(text: str) -> str:
    return CODES.sub("", text)


def without_chatter(text: str) -> str:
    """The lines that are not TensorFlow's of level INFO."""
    return "".join(f"{line}\n" for line in whole_lines(text) if not CHATTER.match(line))
