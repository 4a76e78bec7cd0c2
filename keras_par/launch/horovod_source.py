"""Fetches Horovod's source and gives it a function that sets the cycle time, which Horovod reads only at its start."""

import hashlib
import tarfile
from pathlib import Path

from keras_par.cluster.environment import HOROVOD_VERSION
from keras_par.launch.pip import InstallError, pip

FILE = "horovod/common/operations.cc"
# What is replaced in FILE, and by what. The linker exports names that contain "horovod".
CHANGES = (
    (
        """\
namespace common {
""",
        """\
namespace common {

// Added by keras-par: a cycle time that takes the place of HOROVOD_CYCLE_TIME's, at any time; 0 gives that back.
static std::atomic<double> cycle_time_ms{0};

static double CycleTimeMs(double of_start) {
  double milliseconds = cycle_time_ms;
  return milliseconds > 0 ? milliseconds : of_start;
}

extern "C" void horovod_set_cycle_time_ms(double milliseconds) {
  cycle_time_ms = milliseconds;
}
""",
    ),
    (
        "state.parameter_manager.CycleTimeMs() * 1000.",
        "CycleTimeMs(state.parameter_manager.CycleTimeMs()) * 1000.",
    ),
)
DIGEST = hashlib.sha256(repr(CHANGES).encode()).hexdigest()[:8]  # tells wheels of one change from those of another


def fetch(folder: Path) -> Path:
    """Horovod's source distribution, unpacked into `folder` and changed; returns the folder to build.

    Raises:
        InstallError: pip does not get it, or it is not the source that the changes are for.
    """
    pip(
        *("download", "--no-deps", "--no-binary", "horovod", "--no-build-isolation", "--dest", str(folder)),
        f"horovod=={HOROVOD_VERSION}",
    )
    name = f"horovod-{HOROVOD_VERSION}"
    with tarfile.open(folder / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it from 3.11.4 on
        archive.extractall(folder)
    file = folder / name / FILE
    file.write_text(changed(file.read_text(encoding="utf-8")), encoding="utf-8")
    return folder / name


def changed(text: str) -> str:
    """The text of FILE with all changes.

    Raises:
        InstallError: what a change replaces is not there exactly once.
    """
    for before, after in CHANGES:
        found = text.count(before)
        if found != 1:
            raise InstallError(
                f"Horovod's {FILE} has '{before.strip()}' {found} times instead of once: "
                f"let pip fetch Horovod {HOROVOD_VERSION} as it was released."
            )
        text = text.replace(before, after)
    return text
