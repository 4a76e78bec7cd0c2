"""What is installed on a host, so that a launcher finds the one that differs before its ranks fail or part."""

import importlib.metadata
import sys
from collections.abc import Mapping

from keras_par.base.version import VERSION

PACKAGES = ("keras", "tensorflow", "horovod")
NOTHING = "none"


def installed() -> dict[str, str]:
    """The versions that all hosts of a job must share."""
    found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "keras-par": VERSION}
    return found | {name: version_of(name) for name in PACKAGES}


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return NOTHING


def difference(host: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """One sentence about what a host has otherwise than this one, None if there is nothing."""
    for name, version in ours.items():
        if theirs.get(name, NOTHING) != version:
            return (
                f"Host {host} has {name} {theirs.get(name, NOTHING)}, this host has {version}: install the same on all "
                "hosts, or let them share one environment."
            )
    return None
