"""Finds, in what a Python program last wrote to stderr, its exception and the last line of user code before it."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from keras_par.agent.terminal_filter import CHATTER
from keras_par.base.sentence import USER_CODE, error_of
from keras_par.base.user_code import LIBRARIES, PACKAGE, is_of_user, shown

BEGIN = "Traceback (most recent call last):"
FRAME = re.compile(r'\s+File "(?P<path>.+)", line (?P<line>\d+)(, in (?P<function>.+?))?(  \*)?$')
INDENTED = re.compile(r"\s|[\s^~]+$")  # as a frame's lines; of marks below its code a part may be lost
SYNTAX = re.compile(r"(Syntax|Indentation|Tab)Error: ")
# How TensorFlow's C++, the C++ library and assert() say what is wrong.
FATAL = re.compile(r"F\d{4} \d\d:|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: F |what\(\): |.*: Assertion `.*' failed\.")
PYTEST = re.compile(r"E\s{2,}(?P<error>[\w.]*(Error|Exception|Warning|Exit|Failed)\b.*)$")


def summarize(lines: Sequence[str]) -> tuple[str | None, str | None]:
    """The exception as one line, and "path:line in function: code" of the last frame of user code; None for neither."""
    begins = [number for number, line in enumerate(lines) if line.rstrip().endswith(BEGIN)]
    if not begins and any(SYNTAX.match(line) for line in lines):  # of the script itself, which has no frames yet
        begins = [next((number for number, line in enumerate(lines) if FRAME.match(line.rstrip())), 0) - 1]
    if not begins:
        found = [match["error"] for match in map(PYTEST.match, lines) if match]
        return (found[-1] if found else None), None
    error = exception(lines[begins[-1] + 1 :])
    ends = [*begins[1:], len(lines)]
    blocks = [user_frame(lines[begin + 1 : end]) for begin, end in zip(begins, ends, strict=True)]
    return error, next((frame for frame in reversed(blocks) if frame), None)


def last_words(lines: Sequence[str]) -> str | None:
    """The last line, or what compiled code has said last before it aborts, which a stack may follow."""
    said = [line.strip() for line in lines if line.strip() and not CHATTER.match(line)]
    fatal = [line for line in said if FATAL.match(line)]
    return next(reversed(fatal or said), None)


def exception(lines: Sequence[str]) -> str | None:
    """The first line of a traceback that is not indented, as a frame's lines are, or the sentence that follows it."""
    begin = next((number for number, line in enumerate(lines) if line.strip() and not INDENTED.match(line)), None)
    if begin is None:
        return None
    kind, colon, message = lines[begin].rstrip().partition(":")
    if not colon:
        return kind
    return error_of(kind, "\n".join([message.strip(), *lines[begin + 1 :]]))


def user_frame(lines: Sequence[str]) -> str | None:
    """The last frame of user code; AutoGraph's errors have such frames below them, too."""
    found = None
    for number, line in enumerate(lines):
        if line.strip() and not INDENTED.match(line) and not line.rstrip().endswith(USER_CODE):
            break  # the exception, which ends the frames
        match = FRAME.match(line.rstrip())
        if match and is_of_user(match["path"]):
            code = lines[number + 1].strip() if number + 1 < len(lines) else ""
            is_code = bool(code) and INDENTED.match(lines[number + 1]) and not FRAME.match(lines[number + 1])
            found = shown(match["path"], match["line"], match["function"], code if is_code else "")
    return found


STACK_HEADER = re.compile(r"(Current thread|Thread) 0x")
STACK_FRAME = re.compile(r'  File "(?P<path>.+)", line (?P<line>\d+) in (?P<function>.+)')


def readable_stacks(text: str) -> str:
    """The stacks that faulthandler wrote, innermost call first: the main thread's, and others' in user code."""
    threads: list[list[re.Match]] = []
    current = -1  # the main thread is the last one, unless another is at fault
    for line in text.splitlines():
        if STACK_HEADER.match(line):
            current = len(threads) if line.startswith("Current") else current
            threads.append([])
        elif threads and (frame := STACK_FRAME.match(line)):
            threads[-1].append(frame)
    if not threads:
        return ""
    found = condensed(threads[current])
    others = [frames for frames in threads if frames is not threads[current]]
    for frames in others:
        if any(is_of_user(frame["path"]) for frame in frames):
            found += ["and another thread:", *condensed(frames)]
    return "\n".join(found)


def condensed(frames: Sequence[re.Match]) -> list[str]:
    """One line for each frame; of frames that follow each other in libraries, only the outer- and the innermost."""
    found: list[str] = []
    for is_own, group in itertools.groupby(frames, lambda frame: is_of_user(frame["path"])):
        lines = [readable(frame) for frame in group]
        if not is_own and len(lines) > 4:
            lines[1:-1] = [f"  ... {len(lines) - 2} more in libraries"]
        found += lines
    return found


def readable(frame: re.Match) -> str:
    """A frame on one line, its file by the shortest name that tells which it is."""
    path = frame["path"]
    for folder in (*sorted(LIBRARIES[1:], key=len, reverse=True), f"{PACKAGE.parent}/", f"{Path.cwd()}/"):
        path = path.removeprefix(folder)
    return f"  {path}:{frame['line']} in {frame['function']}"
