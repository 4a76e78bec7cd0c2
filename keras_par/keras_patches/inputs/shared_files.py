"""Files that all ranks ask for: one downloads what others wait for, and each has a tf.data cache of its own."""

import contextlib
import fcntl
import inspect
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from typing import Any, TextIO

import tensorflow as tf
from keras.src.backend import config

from keras_par.comm import world
from keras_par.job import failures
from keras_par.keras_patches.inputs.own_shares import is_marked

_num_calls: Counter[str] = Counter()  # of this rank, by their arguments


def get_file(original):
    """The first rank that asks gets the file; ranks that ask for the same later in this job get the same path.

    They share a lock beside the file, so that any rank may ask alone. To extract again, as Keras does, would take away
    files that another rank reads. Costs no collective.
    """
    signature = inspect.signature(original)

    def replacement(*args, **kwargs):
        job = failures.job()
        if job is None:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        key = f"{job} {sorted(call.arguments.items(), key=str)}"
        _num_calls[key] += 1
        with locked(lock_of(call.arguments)) as note:
            done = noted(note)
            if done.get("key") == key and done.get("number", 0) >= _num_calls[key]:
                return done["path"]
            path = original(*args, **kwargs)
            write(note, {"key": key, "number": _num_calls[key], "path": str(path)})
            return path

    return replacement


def lock_of(arguments: dict[str, Any]) -> str:
    """A hidden file in the folder where `get_file` puts what these arguments name."""
    base = os.path.expanduser(arguments["cache_dir"] or config.keras_home())
    if not os.access(base, os.W_OK):
        base = os.path.join("/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir(), ".keras")  # as Keras does
    folder = os.path.join(base, arguments["cache_subdir"])
    os.makedirs(folder, exist_ok=True)
    name = os.path.basename(str(arguments["fname"] or arguments["origin"]))
    return os.path.join(folder, f".{name}.lock")


@contextlib.contextmanager
def locked(path: str) -> Iterator[TextIO]:
    """Opens a file that one process at a time has; without a lock where the file system has none."""
    with open(path, "a+") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def noted(file: TextIO) -> dict[str, Any]:
    """What `write` has left in a file, {} if nothing."""
    file.seek(0)
    try:
        found = json.loads(file.read() or "{}")
    except (ValueError, RecursionError):  # of a process that was killed
        return {}
    return found if isinstance(found, dict) else {}


def write(file: TextIO, note: dict[str, Any]) -> None:
    file.truncate(0)
    file.write(json.dumps(note))
    file.flush()


def cache(original):
    """Caches in `<filename>-rank-<rank>-of-<size>`; reads a complete cache that one process left at `filename`.

    A cache of this rank's share, by `kp.data.shard`, is never taken from `filename`, which would hold all rows. Costs
    no collective.
    """

    def replacement(self, filename="", name=None):
        communicator = world.current() if world.is_started() else None
        is_path = isinstance(filename, (str, os.PathLike)) and os.fspath(filename) != ""
        if communicator is not None and communicator.size > 1 and is_path:
            filename = os.fspath(filename)
            if is_marked(self) or not is_complete(filename):
                filename = f"{filename}-rank-{communicator.rank}-of-{communicator.size}"
        return original(self, filename, name)

    return replacement


def is_complete(filename: str) -> bool:
    """True if a cache was written there to its end, which is when TensorFlow writes its index."""
    return tf.io.gfile.exists(f"{filename}.index")
