"""Finds the sentence that says what went wrong, in messages that Keras and TensorFlow have wrapped into others."""

import itertools
import re
from collections.abc import Sequence

USER_CODE, CALLING, GRAPH = "in user code:", "Exception encountered when calling ", "Graph execution error:"
LONGEST = 1000  # characters of a sentence
DEEPEST = 20  # messages around a sentence
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NODES = re.compile(r"(\{\{(function_)?node [^}]*\}\} ?)+")
# What stands between "Graph execution error:" and what is wrong.
AROUND = re.compile(r"\s|Detected at node |<stack traces unavailable>|\d+ root error\(s\) found")
NUMBERED = re.compile(r"\(\d+\)\s+")


def sentence_of(message: str) -> str:
    """The first line of the innermost message, without the colours of a terminal; empty where there is none."""
    lines = [line.rstrip() for line in CODES.sub("", message).splitlines()]
    for _ in range(DEEPEST):
        lines = without_blanks(lines)
        inner = unwrapped(lines)
        if not without_blanks(inner):
            break
        lines = inner
    if message[:1].isspace():  # it is written as paragraphs
        lines = [" ".join(line.strip() for line in itertools.takewhile(str.strip, lines))]
    return NUMBERED.sub("", NODES.sub("", lines[0].strip()), count=1)[:LONGEST] if lines else ""


def without_blanks(lines: Sequence[str]) -> list[str]:
    """The lines from the first that is not empty on."""
    return list(lines[next((number for number, line in enumerate(lines) if line.strip()), len(lines)) :])


def unwrapped(lines: Sequence[str]) -> list[str]:
    """The message within a message; no lines if it is within no other, or if that says nothing."""
    if not lines:
        return []
    first, rest = lines[0].strip(), without_blanks(lines[1:])
    if first.endswith(USER_CODE) and rest:
        depth = indent(rest[0])
        begin = next((number for number, line in enumerate(rest) if is_said(line, depth)), None)
        return [] if begin is None else rest[begin:]
    if CALLING in first:
        return [] if not rest or rest[0].startswith("Arguments received by") else rest
    if first.endswith(GRAPH):
        found = next((number for number, line in enumerate(rest) if line and not AROUND.match(line)), None)
        numbered = next((number for number, line in enumerate(rest) if NUMBERED.match(line.strip())), None)
        place = numbered if numbered is not None else found
        return [] if place is None else rest[place:]
    return []


def is_said(line: str, depth: int) -> bool:
    """True for a line that is neither a frame nor its code."""
    return bool(line.strip()) and indent(line) <= depth and not line.strip().startswith('File "')


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def error_of(kind: str, message: str) -> str:
    """An error as one line: what kind it is, and its sentence."""
    sentence = sentence_of(message)
    short = kind.rpartition(".")[2]
    return sentence if sentence.startswith(f"{short}: ") else f"{kind}: {sentence}" if sentence else kind
