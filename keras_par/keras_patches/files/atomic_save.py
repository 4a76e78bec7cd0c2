"""Files of models are whole whoever saves them: each rank writes beside the path, and then gives its files the name.

A rank that saves does not know whether others do, so that it can ask none. In data parallel all write the same; the
last one's files stay.
"""

import contextlib
import contextvars
import ctypes
import errno
import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
from keras.src.utils import file_utils

from keras_par.comm import world

HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of renameat2(2)
LAST = ".json"  # names the other files of weights that are in several
TABLE = "variables.index"  # of TensorFlow: beside it are files that only belong to this one

_renamed: contextvars.ContextVar[tuple[str, str] | None] = contextvars.ContextVar("keras_par_renamed", default=None)


def making_folders(original: Callable) -> Callable:
    """As `written_beside`, for a function that makes the folders above the path."""
    return written_beside(original, makes_folders=True)


def written_beside(original: Callable, makes_folders: bool = False) -> Callable:
    """Lets a function with an argument `filepath` write beside it, in a job of several ranks.

    Args:
        original: the function.
        makes_folders: True for one that makes the folders above the path.
    """
    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        path = call.arguments["filepath"]
        if _renamed.get() is not None or not is_local(path) or not is_shared_job():
            return original(*args, **kwargs)
        if makes_folders or call.arguments.get("zipped") is False:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with beside(path) as temporary:
            call.arguments["filepath"] = str(temporary)
            token = _renamed.set((str(temporary), str(path)))
            try:
                return original(*call.args, **call.kwargs)
            finally:
                _renamed.reset(token)

    return replacement


def opened_beside(original: Callable) -> Callable:
    """Lets an HDF5 file that is written in a job of several ranks get its name when it is closed."""

    def replacement(self, path_or_io, mode=None):
        is_written = (mode or self.mode) == "w" and not self.archive and _renamed.get() is None
        if not is_written or not is_local(path_or_io) or not is_shared_job():
            return original(self, path_or_io, mode)
        return FileBeside(path_or_io)

    return replacement


class FileBeside(h5py.File):
    """A new file that gets its name when it is closed; one that is forgotten instead goes with Python's object."""

    def __init__(self, path: str | os.PathLike):
        self._beside = contextlib.ExitStack()
        super().__init__(self._beside.enter_context(beside(path)), "w")

    def close(self) -> None:
        """As h5py's."""
        super().close()
        self._beside.close()


def in_order(original: Callable) -> Callable:
    """Lists variables as the model does, so that the files of one rank's SavedModel fit another's.

    TensorFlow lists a function's variables by their addresses in memory.
    """

    def replacement(self):
        original(self)
        tracked = self._tf_trackable
        places = {id(getattr(variable, "value", variable)): i for i, variable in enumerate(tracked.variables)}
        listed = sorted(tracked._all_variables, key=lambda each: (places.get(id(each), len(places)), each.name))
        tracked._all_variables = listed

    return replacement


def with_the_name_given(original: Callable) -> Callable:
    """What Keras prints about a file names the path that it was asked for."""

    def replacement(message, *args, **kwargs):
        renamed = _renamed.get()
        return original(message.replace(*renamed) if renamed else message, *args, **kwargs)

    return replacement


def asked_on_rank_0(original: Callable) -> Callable:
    """Rank 0 alone can ask the user whether to write over a file; the other ranks leave theirs as they are."""

    @functools.wraps(original)
    def replacement(model, filepath, overwrite=True, *args, **kwargs):
        is_asked = not overwrite and is_local(filepath) and os.path.exists(filepath)
        if is_asked and is_shared_job() and world.current().rank != 0:
            return None
        return original(model, filepath, overwrite, *args, **kwargs)

    return replacement


def is_shared_job() -> bool:
    """True in a job of several ranks."""
    return world.is_started() and world.current().size > 1


def is_local(path: Any) -> bool:
    """True for a path of this machine's folders where a file or folder is or can be."""
    if not isinstance(path, (str, os.PathLike)) or file_utils.is_remote_path(path):
        return False
    return not os.path.exists(path) or os.path.isfile(path) or os.path.isdir(path)


@contextlib.contextmanager
def beside(path: str | os.PathLike) -> Iterator[Path]:
    """A path of the same name in a temporary folder beside; what is there at the end is moved to `path`'s folder.

    It replaces files of the same names, and leaves others in a folder of the same name, as writing over them does.
    Where no temporary folder can be made, it is `path` itself, so that the caller finds out why.
    """
    target = Path(os.path.realpath(path))
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError:
        yield Path(path)
        return
    try:
        yield folder / target.name
        for made in sorted(folder.iterdir(), key=lambda made: made.suffix == LAST):
            put(made, target.with_name(made.name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put(made: Path, target: Path) -> None:
    """Gives a file or folder the name `target`, under which another rank may put its own meanwhile."""
    if target.is_file() and made.is_file():
        shutil.copymode(target, made)
    try:
        made.replace(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if (made / TABLE).exists():
            swap(made, target)
            return
        for each in sorted(made.iterdir()):
            put(each, target / each.name)


def swap(one: Path, other: Path) -> None:
    """Exchanges two folders' names at once; where the system cannot, `other` is not there for a moment."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename and rename(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0:
        return
    with contextlib.suppress(FileNotFoundError):
        other.replace(one.with_name(f"{one.name}.before"))
    put(one, other)
