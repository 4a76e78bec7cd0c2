"""Versions: of this package, of those that it works with, as its metadata ask for them, and of those that are here."""

import sys
from collections.abc import Mapping

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
