"""A file that says which process has a folder while that lives: no second job gets it, and none waits for the dead.

The system's own locks are not used: many shared disks have none, or none that other hosts see. On its own host a
process is looked up; elsewhere it is the time of the file that tells, which the owner sets anew every few seconds, and
which is compared by the disk's own clock.
"""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from keras_par.base.regular_file import opened

BEAT_SECONDS, DEAD_SECONDS, LOOK_SECONDS = 5.0, 20.0, 0.5
MOST_BYTES = 4096
BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """A process that has a lock.

    Args:
        token: of this lock.
        host: its name.
        place: the host since its start, and its numbers of processes, which containers have of their own.
        pid: the process.
        began: when that started, which tells it from a later one of that number.
        job: what an attempt of a job shares with those before it; empty if nobody starts it again.
    """

    token: str
    host: str
    place: str
    pid: int
    began: str
    job: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class TakenError(RuntimeError):
    """Another process that lives has the lock; the message says which."""


class Lock:
    """A lock that this process has; it is given back at its end, too.

    Args:
        path: of the file.
        owner: this process.
    """

    def __init__(self, path: Path, owner: Owner):
        self._path, self._owner = path, owner
        self._over = threading.Event()
        self.give_back = weakref.finalize(self, given_back, path, owner, self._over)
        threading.Thread(target=beat, args=(path, owner, self._over), name="kp-lock", daemon=True).start()

    def check(self) -> None:
        """Looks whether the lock is still this process's; makes it anew where somebody has cleared the folder.

        Raises:
            TakenError: another process has taken it, because this one seemed dead.
        """
        found = read(self._path)
        if found is None and not self._path.exists():
            with contextlib.suppress(FileExistsError):
                write(self._path, self._owner)
            found = read(self._path)
        if found is None or (found.token != self._owner.token and not is_this_process(found)):
            raise TakenError(str(found or "another process"))


def take(path: Path, job: str = "", wait: Callable[[Owner], None] | None = None) -> Lock:
    """The lock at a path in a folder that is there, also where its owner is dead, or an earlier attempt of this job.

    Args:
        path: of the file.
        job: that this process belongs to, see `Owner`.
        wait: is told the owner before it is waited for, for DEAD_SECONDS at most, where it is on another host and
            nobody knows yet whether it lives; None takes it for alive.

    Raises:
        TakenError: another process has it.
        OSError: the file cannot be written.
    """
    own = this_process(job)
    with contextlib.suppress(FileExistsError):
        write(path, own)
        return Lock(path, own)
    fresh = path.with_name(f"{path.name}.{own.token}")  # which has the time of now by the disk's clock
    write(fresh, own)
    first: float | None = None
    try:
        while True:
            found, beaten = read(path), modified(path)
            if found is not None and is_this_process(found):
                return Lock(path, found)
            os.utime(fresh)
            age = DEAD_SECONDS if beaten is None else fresh.stat().st_mtime - beaten
            if may_be_taken(found, own, age):
                fresh.replace(path)
                return Lock(path, own)
            is_elsewhere = found is None or found.place != own.place
            if wait is None or not is_elsewhere or (first is not None and beaten != first):
                raise TakenError(str(found or "another process"))
            if first is None and found is not None:
                wait(found)
            first = beaten if first is None else first
            time.sleep(LOOK_SECONDS)
    finally:
        fresh.unlink(missing_ok=True)


def may_be_taken(found: Owner | None, own: Owner, age: float) -> bool:
    """True if the owner of a lock is dead, or this job's own.

    Args:
        found: the owner, None if it is not known.
        own: this process.
        age: seconds since the owner last said that it lives.
    """
    if found is not None and found.job and found.job == own.job:
        return True
    if found is not None and found.place == own.place:
        return not is_alive(found)
    return age >= DEAD_SECONDS


def this_process(job: str) -> Owner:
    pid = os.getpid()
    return Owner(secrets.token_hex(8), socket.gethostname(), place(), pid, began(pid) or "", job)


def is_alive(found: Owner) -> bool:
    """True if a process of this host is the owner still, or may be."""
    try:
        os.kill(found.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        pass
    return began(found.pid) in ("", found.began)


def is_this_process(found: Owner) -> bool:
    pid = os.getpid()
    return (found.place, found.pid, found.began) == (place(), pid, began(pid) or "")


def place() -> str:
    """What tells this host, since it was started, and its numbers of processes from others."""
    boot = numbers = ""
    with contextlib.suppress(OSError):
        boot, numbers = BOOT.read_text().strip(), os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {boot} {numbers}"


def began(pid: int) -> str | None:
    """When a process of this host started, in the system's ticks; empty if that is hidden, None if it is dead."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return None if state in "ZX" else fields[18]


def read(path: Path) -> Owner | None:
    """Who has the lock; None if there is none, or its file says nothing that can be understood."""
    try:
        with opened(path, MOST_BYTES) as file:
            content = json.loads(file.read(MOST_BYTES))
        found = Owner(**content)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (found.token, found.host, found.place, found.began, found.job)
    is_one = type(found.pid) is int and 0 < found.pid < 2**32 and all(isinstance(each, str) for each in texts)
    return found if is_one and found.host.isprintable() else None


def write(path: Path, owner: Owner) -> None:
    """Makes the file.

    Raises:
        FileExistsError: it is there.
    """
    with path.open("x") as file:
        file.write(json.dumps(asdict(owner)))


def modified(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return None


def beat(path: Path, owner: Owner, over: threading.Event) -> None:
    """Says every few seconds that the owner lives, in a thread of its own."""
    while not over.wait(BEAT_SECONDS):
        found = read(path)
        if found is not None and found.token == owner.token:
            with contextlib.suppress(OSError):
                os.utime(path)


def given_back(path: Path, owner: Owner, over: threading.Event) -> None:
    """Removes the file if it is still this process's; a forked child's copy of the lock is not."""
    over.set()
    found = read(path)
    if found is not None and found.token == owner.token and owner.pid == os.getpid():
        with contextlib.suppress(OSError):
            path.unlink()
