"""Finds what a job has left on its host besides processes: shared memory, semaphores, and temporary files."""

import contextlib
import time
from pathlib import Path

from tests.present import present

SHARED = Path("/dev/shm")
GONE_SECONDS = 3.0
OF_OTHERS = ("sem.mp-", "sem.loky-")  # semaphores of Python's pools, which keras-par has none of
OF_TENSORFLOW = "__autograph_generated_file"  # which it removes at exit only, so not where a process is killed


def in_memory() -> set[str]:
    """What is in shared memory now: files, and the segments and semaphores of System V."""
    tables = [Path("/proc/sysvipc", kind).read_text().splitlines()[1:] for kind in ("shm", "sem", "msg")]
    segments = {f"{line.split()[0]} {line.split()[1]}" for table in tables for line in table}
    files = [path for path in present(SHARED, "**") if path.is_file() and not path.name.startswith(OF_OTHERS)]
    return segments | {str(path) for path in files}


def in_use() -> str:
    """All that processes have mapped or open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((process / "maps").read_text())
            found += [str(file.readlink()) for file in (process / "fd").iterdir()]
    return "\n".join(found)


def orphans(before: set[str], temporary: Path) -> list[str]:
    """What has come into memory since `before` and belongs to no process, and what is in the folder for temporaries.

    Other jobs may run: what a process has mapped is theirs.
    """
    deadline = time.monotonic() + GONE_SECONDS
    while True:
        used = in_use()
        left = [each for each in in_memory() - before if each not in used]
        left += [str(path) for path in present(temporary, "**/*") if not path.name.startswith(OF_TENSORFLOW)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)
