"""Compiles the package's C++ for the TensorFlow installed here, once, and keeps the library in the cache."""

import hashlib
import importlib.util
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

from keras_par.base.cache import cache_folder

FOLDER = Path(__file__).with_name("shared")
SOURCE = FOLDER / "operations.cc"
# TensorFlow's C interface is all that it links, whose headers compile in seconds.
OPTIONS = ("-std=c++17", "-O3", "-fPIC", "-shared")
FRAMEWORK = "libtensorflow_framework.so.2"
PROCESSOR = Path("/proc/cpuinfo")


def library() -> Path:
    """The compiled library, from the cache where it fits source, processor and TensorFlow.

    Raises:
        RuntimeError: there is no compiler, it failed, or the cache cannot be written.
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
    if path.exists():
        return path
    linked = [f"-L{tensorflow}", f"-l:{FRAMEWORK}", f"-Wl,-rpath,{tensorflow}"]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder, path.name)
            command = [*compiler, str(SOURCE), "-o", str(fresh), f"-I{tensorflow / 'include'}", *linked]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.replace(fresh, path)
    except subprocess.CalledProcessError as error:
        said = next((line for line in error.stderr.splitlines() if "error" in line), "no message")
        raise RuntimeError(f"keras-par: compiling {SOURCE.name} failed: {said}") from None
    except OSError as error:
        raise RuntimeError(f"keras-par: {SOURCE.name} cannot be compiled into {path.parent}: {error}") from None
    return path


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
    print(library())
