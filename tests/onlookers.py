"""What other users of a host see of a job: command lines, and files that they may read."""

import contextlib
import json
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_par.agent.wire import VARIABLE
from tests.launcher import Job

SHARED = Path("/dev/shm")
MOST_BYTES = 2**24  # of a file that is looked into


class Onlooker:
    """Reads the command lines of all processes of this machine, and of hosts that it plays, again and again."""

    def __init__(self) -> None:
        self.began = time.time()
        self.seen: set[bytes] = set()
        self.keys: set[str] = set()  # of launchers, which only their own user finds in environments
        self.num_looks = 0

    def look(self) -> None:
        """Reads all command lines there are."""
        self.num_looks += 1
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                with contextlib.suppress(OSError):
                    self.seen.add((process / "cmdline").read_bytes())

    def note_keys(self, pids: Iterable[int]) -> None:
        """Takes in the keys that processes have in their environments."""
        for pid in pids:
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    name, _, value = entry.partition(b"=")
                    if name.decode() == VARIABLE:
                        self.keys.add(json.loads(value)["key"])

    def lines_with(self, *secrets: str) -> list[str]:
        """The command lines that have one of these texts."""
        return [
            line.replace(b"\0", b" ").decode(errors="replace")
            for line in self.seen
            if any(secret.encode() in line for secret in secrets)
        ]

    def files_with(self, *secrets: str, folders: Iterable[Path] = ()) -> list[Path]:
        """Files with one of these texts that others may read: those of folders, and new ones where all may write."""
        common = [each for folder in {Path(tempfile.gettempdir()), Path("/tmp"), SHARED} for each in folder.iterdir()]
        new = [path for path in common if (state := state_of(path)) and state.st_ctime >= self.began]
        found = [path for root in folders for path in open_files(root)]
        found += [path for root in new for path in open_files(root, self.began)]
        return [path for path in found if has_one(path, *secrets)]


def state_of(path: Path) -> os.stat_result | None:
    """Its mode, size and times, if it is still there."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None


def has_one(path: Path, *secrets: str) -> bool:
    """True if a file that is still there has one of these texts."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        return any(secret.encode() in found for secret in secrets)
    return False


def open_files(root: Path, since: float = 0.0) -> Iterator[Path]:
    """The files within that other users may read and that were written since then, as those of others may be many."""
    state = state_of(root)
    if state is None:
        return
    if stat.S_ISREG(state.st_mode) and state.st_mode & 0o044 and state.st_size < MOST_BYTES:
        if state.st_ctime >= since:
            yield root
    elif stat.S_ISDIR(state.st_mode) and state.st_mode & 0o011:
        with contextlib.suppress(OSError):
            for each in root.iterdir():
                yield from open_files(each, since)


@contextlib.contextmanager
def onlooker() -> Iterator[Onlooker]:
    """One that looks all the time, within the `with`."""
    found, is_over = Onlooker(), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            found.look()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        assert found.num_looks > 1


def require_kept(job: Job, seen: Onlooker, folder: Path, secret: str, num_ranks: int, *others: Path) -> None:
    """Fails if the secret or the launcher's key could be read by others while ranks run, or is left afterwards."""
    folders = (folder, *others)
    for each in folders:
        each.chmod(0o755)  # which are closed in tests
    for rank in range(num_ranks):
        job.wait_for(folder / f"ready.{rank}")
    seen.note_keys(each.pid for each in job.processes())
    assert len(seen.keys) == 1
    texts = (secret, *seen.keys)
    assert not seen.files_with(*texts, folders=folders)
    (folder / "go").touch()
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert not [line[:300] for line in seen.lines_with(*texts)]
    assert not seen.files_with(*texts, folders=folders)
    assert not any(text in ended.stdout + ended.stderr for text in texts)
