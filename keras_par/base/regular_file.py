"""Opens files that others may have put there: regular ones alone, no links, none larger than is sensible."""

import errno
import io
import os
import stat
from pathlib import Path


def opened(path: Path, most: int | None = None) -> io.BufferedReader:
    """A regular file, to be read; nothing else is opened, since a pipe or a device may give bytes for ever.

    Args:
        path: of the file, which is no link; its folder may be one.
        most: bytes that it may have.

    Raises:
        OSError: it cannot be opened, is something else, or is larger.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {kind_of(found.st_mode)} and no regular file", str(path))
    if most is not None and found.st_size > most:
        raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than {most}", str(path))
    # Whatever is put there meanwhile is not followed and not waited for.
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def require_folder(path: Path) -> None:
    """Refuses what is no folder itself, as a link to one.

    Raises:
        OSError: it is something else, or not there.
    """
    mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, f"it is {kind_of(mode)} and no folder", str(path))


def kind_of(mode: int) -> str:
    """What a file is, in words."""
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a regular file", stat.S_IFIFO: "a pipe"}
    return kinds.get(stat.S_IFMT(mode), "a device")
