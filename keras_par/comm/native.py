"""Compiles the package's C++ for the TensorFlow installed here, once, and keeps the library in the cache."""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_par.base.environment import cache_folder

FOLDER = Path(__file__).with_name("shared")
SOURCE = FOLDER / "operations.cc"
# TensorFlow's C interface is all that it links, whose headers compile in seconds.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared")
FRAMEWORK = "libtensorflow_framework.so.2"
PROCESSOR = Path("/proc/cpuinfo")
NOT_YET = (
    "the library for it is not compiled yet, which is done in the background for later jobs, and by 'keras-par doctor' "
    "at once"
)
# The shell ends at once, and nobody waits for what compiles. The launcher knows it by its name, and leaves it alone.
IN_BACKGROUND = 'nice -n 19 "$0" -P -m keras_par.comm.native &'


def compiled() -> Path:
    """The library for a job, which never waits for a compiler: it is begun where none runs for the same library.

    Raises:
        RuntimeError: the library is not there yet, or cannot be.
    """
    path, command = wanted()
    if path.exists():
        return path
    said: list[str] = []
    try:
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with log_of(path).open("a+") as log:
            log.seek(0)
            said = [line.rstrip() for line in log if line.startswith("keras-par: ")]
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # what compiles inherits it, and has it until it ends
            log.truncate(0)
            shell = ["sh", "-c", IN_BACKGROUND, sys.executable]
            null = subprocess.DEVNULL
            subprocess.run(shell, stdin=null, stdout=null, stderr=log, start_new_session=True)
    except BlockingIOError:
        pass
    except OSError as error:
        raise RuntimeError(f"keras-par: {SOURCE.name} cannot be compiled into {path.parent}: {error}") from None
    raise RuntimeError(said[-1] if said else f"keras-par: {NOT_YET}.")


def library() -> Path:
    """The library, from the cache or compiled now, in some seconds.

    Raises:
        RuntimeError: there is no compiler, it failed, or the cache cannot be written.
    """
    path, command = wanted()
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:  # where a compiler that is killed leaves what it leaves
                fresh = Path(folder, path.name)
                subprocess.run([*command, "-o", str(fresh)], check=True, capture_output=True, text=True)
                with tempfile.TemporaryDirectory(dir=path.parent) as beside:
                    os.replace(shutil.copy(fresh, beside), path)
        except subprocess.CalledProcessError as error:
            said = next((line for line in error.stderr.splitlines() if "error" in line), "no message")
            raise RuntimeError(f"keras-par: compiling {SOURCE.name} failed: {said}") from None
        except OSError as error:
            raise RuntimeError(f"keras-par: {SOURCE.name} cannot be compiled into {path.parent}: {error}") from None
    with contextlib.suppress(OSError):  # of a cache that is read only, where a library is
        log_of(path).unlink()
    return path


def log_of(path: Path) -> Path:
    """A file that is locked while a library is compiled in the background, and says why that failed the last time."""
    return path.with_suffix(".log")


def wanted() -> tuple[Path, list[str]]:
    """The library that fits source, processor and TensorFlow, and the command that compiles it but for its output.

    Raises:
        RuntimeError: there is no TensorFlow.
    """
    found = importlib.util.find_spec("tensorflow")
    if found is None or not found.submodule_search_locations:
        raise RuntimeError("keras-par: TensorFlow is not installed: run 'pip install tensorflow'.")
    tensorflow = Path(found.submodule_search_locations[0])
    compiler = [*shlex.split(os.environ.get("CXX", "c++")), *OPTIONS, *for_this_processor()]
    # A library may need what only a newer C library has, and caches are shared by hosts.
    sources = [path.read_text() for path in sorted(FOLDER.iterdir()) if path.suffix in (".cc", ".h")]
    about = [*sources, *compiler, instructions(), str(tensorflow), *built_for(tensorflow), *platform.libc_ver()]
    digest = hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
    path = cache_folder() / f"shared-memory-{digest}-{platform.machine()}.so"
    linked = [f"-L{tensorflow}", f"-l:{FRAMEWORK}", f"-Wl,-rpath,{tensorflow}"]
    return path, [*compiler, str(SOURCE), f"-I{tensorflow / 'include'}", *linked]


def for_this_processor() -> list[str]:
    """Lets the compiler use all instructions there are: those that convert numbers of 16 bits are not in all."""
    return ["-march=native"] if platform.machine() == "x86_64" else []


def instructions() -> str:
    """Those that the processor knows, as Linux lists them; empty where it does not."""
    try:
        lines = PROCESSOR.read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("flags")), "")


def built_for(tensorflow: Path) -> list[str]:
    """What tells one TensorFlow from another, found without loading it: its library's size and time."""
    about = (tensorflow / FRAMEWORK).stat()
    return [str(about.st_size), str(about.st_mtime_ns)]


if __name__ == "__main__":
    try:
        print(library())
    except RuntimeError as error:
        sys.exit(str(error))
