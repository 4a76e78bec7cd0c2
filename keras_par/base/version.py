"""What is installed, found without loading it: versions of this package and of those it works with, and Horovod."""

import sys
from collections.abc import Mapping
from pathlib import Path

VERSION = "0.2.0"

SUPPORTED = {"tensorflow": ("2.16", "3"), "keras": ("3.14", "4")}  # from, below
PACKAGES = ("keras", "tensorflow", "horovod")
NOTHING = "none"


def wanted(name: str) -> str:
    """What pip is asked for: "keras>=3.14,<4"."""
    least, below = SUPPORTED[name]
    return f"{name}>={least},<{below}"


def version_of(*distributions: str) -> str | None:
    """The version of the first of `distributions` that is installed; None for none."""
    import importlib.metadata  # most of the time that `import keras_par` would take

    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def installed() -> dict[str, str]:
    """The versions that all hosts of a job must share."""
    found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "keras-par": VERSION}
    return found | {name: version_of(name) or NOTHING for name in PACKAGES}


def difference(host: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """One sentence about what a host has otherwise than this one, None if there is nothing."""
    for name, version in ours.items():
        if theirs.get(name, NOTHING) != version:
            return (
                f"Host {host} has {name} {theirs.get(name, NOTHING)}, this host has {version}: install the same on all "
                "hosts, or let them share one environment."
            )
    return None


def horovod_folder() -> Path | None:
    """Where Horovod is installed, whether or not it loads; None if it is not."""
    import importlib.util  # as above
    from importlib.machinery import PathFinder

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
