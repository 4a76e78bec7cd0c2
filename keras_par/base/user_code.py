"""Tells code of the user's from that of Python, of installed packages and of this one, by the path of its file."""

import functools
import os
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

PACKAGE = Path(__file__).resolve().parents[1]
PATHS = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")]
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in dict.fromkeys([str(PACKAGE), *PATHS]))
INSTALLED = ("site-packages", "dist-packages", "__autograph_generated")
LONGEST = 200  # characters of code that are shown
CYTHON = (".pyx", ".pxd", ".pxi")  # compiled code, whose frames name the files of which it was built


@functools.cache
def is_of_user(path: str) -> bool:
    """False for code of Python's, of installed packages, of this one, and for what was made in memory."""
    is_library = path.startswith(("<", *LIBRARIES)) or path.endswith(CYTHON)
    return not is_library and not any(part in path for part in INSTALLED)


def shown(path: str, line: int | str, function: str | None, code: str) -> str:
    """A line of code as verdicts show it."""
    return f"{path}:{line}" + (f" in {function}" if function else "") + (f": {code[:LONGEST]}" if code else "")


def without_own_frames(stack: TracebackType | None) -> TracebackType | None:
    """The traceback of an error without this package's frames; the innermost of all stays, where the error arose."""
    chain = []
    while stack is not None:
        chain.append(stack)
        stack = stack.tb_next
    kept = None
    for each in reversed(chain):
        if each is chain[-1] or not each.tb_frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def last_line(stack: TracebackType | None) -> str:
    """The innermost line of the user's in the traceback of an error, empty where there is none."""
    found = [each for each in traceback.extract_tb(stack) if is_of_user(each.filename)]
    if not found:
        return ""
    last = found[-1]
    return shown(last.filename, last.lineno or 0, last.name, last.line or "")
