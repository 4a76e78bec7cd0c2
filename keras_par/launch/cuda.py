"""Finds what Horovod is built with for GPUs: a CUDA toolkit of the machine's, or NVIDIA's packages from PyPI."""

import hashlib
import os
import re
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_par.launch.build_environment import InstallError

SITE = Path(sysconfig.get_paths()["platlib"])
TOOLKIT = "nvidia/cu13"  # of nvidia-cuda-nvcc and what it asks for; NVIDIA's packages of CUDA 12 have no compiler
NCCL = "nvidia/nccl"  # of nvidia-nccl-cu12, which TensorFlow uses, too


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit.

    Args:
        home: its folder.
        version: its compiler's, such as "13.5".
        is_own: whether it came as packages of this environment.
    """

    home: Path
    version: str
    is_own: bool

    @property
    def key(self) -> str:
        """What a wheel that was built with it is known by."""
        place = "own" if self.is_own else hashlib.sha256(str(self.home).encode()).hexdigest()[:8]
        return f"{self.version}-{place}"


def find(environ: Mapping[str, str], site: Path = SITE) -> Cuda:
    """The toolkit that HOROVOD_CUDA_HOME names, else that of the packages below `site`.

    Raises:
        InstallError: there is no compiler, or it does not start.
    """
    home = Path(environ.get("HOROVOD_CUDA_HOME") or site / TOOLKIT)
    compiler = home / "bin" / "nvcc"
    try:
        text = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(
            f"the CUDA compiler '{compiler}' does not start ({error}): set HOROVOD_CUDA_HOME to the folder of a CUDA "
            "toolkit, or leave it unset to have NVIDIA's packages."
        ) from error
    found = re.search(r"release (\d+\.\d+)", text)
    return Cuda(home, found.group(1) if found else "unknown", not environ.get("HOROVOD_CUDA_HOME"))


def add_variables(environment: dict[str, str], cuda: Cuda, work: Path, site: Path = SITE) -> None:
    """Has Horovod's build, whose variables these are, use `cuda` and NCCL; links lie in `work` until it is done.

    Packages have libraries by the names that programs load, and not by those that linkers look for. NCCL is found again
    from where Horovod's library lies, so that environments share a wheel. The CUDA runtime is called through
    TensorFlow's library.
    """
    environment |= {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(cuda.home)}
    environment["PATH"] = os.pathsep.join((str(cuda.home / "bin"), environment["PATH"]))
    if not cuda.is_own:
        return
    libraries = [*(cuda.home / "lib").glob("libcudart.so.*"), site / NCCL / "lib" / "libnccl.so.2"]
    for library in libraries:
        (work / f"{library.name.partition('.so')[0]}.so").symlink_to(library)
    environment |= {
        "CMAKE_LIBRARY_PATH": os.pathsep.join((str(work), str(cuda.home / "lib"))),
        "HOROVOD_NCCL_INCLUDE": str(site / NCCL / "include"),
        "HOROVOD_NCCL_LIB": str(work),
        "HOROVOD_NCCL_LINK": "shared",
    }
    from_there = os.path.relpath(site / NCCL / "lib", site / "horovod/tensorflow")
    flags = (f"-Wl,-rpath,'$ORIGIN/{from_there}'", environment.get("LDFLAGS"))
    environment["LDFLAGS"] = " ".join(filter(None, flags))
