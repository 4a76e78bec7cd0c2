"""Finds the Horovod that is installed, without loading it, so that the launcher and the ranks mean the same by it."""

import importlib.util
from importlib.machinery import PathFinder
from pathlib import Path


def horovod_folder() -> Path | None:
    """Where Horovod is installed, whether or not it loads; None if it is not."""
    try:
        spec = importlib.util.find_spec("horovod")
    except ModuleNotFoundError:
        return None
    except ValueError:  # something stands in for it that has no spec
        spec = PathFinder.find_spec("horovod")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def horovod_library() -> Path | None:
    """Horovod's library for TensorFlow; None if there is none, as in a Horovod that was built without TensorFlow."""
    folder = horovod_folder()
    return next(iter(sorted((folder / "tensorflow").glob("mpi_lib*.so"))), None) if folder else None
