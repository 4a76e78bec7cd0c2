"""What TensorFlow and NCCL need besides themselves to compute on GPUs, and what of it is missing here."""

import ctypes
import importlib.metadata
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from keras_par.base.version import version_of
from keras_par.cluster.binding import num_gpus
from keras_par.doctor.checks import Finding
from keras_par.doctor.installed import DISTRIBUTIONS, Installed, Loaded

DRIVER = "libcuda.so.1"
LIBRARIES = re.compile(r"([\w.-]+).*extra\s*==\s*['\"]and-cuda['\"]")  # a requirement of tensorflow[and-cuda]


@dataclass(frozen=True)
class Gpu:
    """NVIDIA's GPUs of this host and what drives them."""

    devices: int  # that the driver shows, whatever CUDA_VISIBLE_DEVICES says
    driver: str | None  # the newest CUDA that the driver knows, None without a driver
    missing: list[str]  # packages of tensorflow[and-cuda] that are not installed
    visible: str | None  # CUDA_VISIBLE_DEVICES


def find() -> Gpu:
    """What is here, found without TensorFlow and without starting the driver."""
    return Gpu(num_gpus(), driver(), missing_libraries(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def driver(library: str = DRIVER) -> str | None:
    """The newest CUDA that NVIDIA's driver knows, such as "12.4"; None if its library does not load."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{version.value // 1000}.{version.value % 1000 // 10}"


def missing_libraries() -> list[str]:
    """The packages that tensorflow[and-cuda] would have brought and that are not installed."""
    here = [name for name in DISTRIBUTIONS["tensorflow"] if version_of(name)]
    wanted = [line for name in here for line in importlib.metadata.requires(name) or []]
    names = [found.group(1) for found in map(LIBRARIES.match, wanted) if found]
    return [name for name in names if version_of(name) is None]


def check(gpu: Gpu, installed: Installed, loaded: Loaded) -> Iterator[Finding]:
    """Where there is a GPU, or a Horovod for GPUs: TensorFlow sees it, and what connects the ranks can use it."""
    has_nccl = loaded.engines["nccl"]
    if loaded.gpus and not loaded.with_horovod:
        said = f"TensorFlow sees {loaded.gpus} GPU(s) but its own collectives sum in the host's memory"
        yield Finding("note", "gpu", f"{said}: run 'keras-par install-horovod --gpu' to have NCCL.")
    elif loaded.gpus and not has_nccl:
        said = f"TensorFlow sees {loaded.gpus} GPU(s) but Horovod was built without NCCL and sums in the host's memory"
        yield Finding("note", "gpu", f"{said}: run 'keras-par install-horovod --gpu'.")
    if loaded.gpus or not (has_nccl or gpu.devices):
        return
    if not gpu.devices:
        fix = "in a container, start it with GPUs ('docker run --gpus all')"
        yield Finding("note", "gpu", f"Horovod was built with NCCL but there is no GPU of NVIDIA's here: {fix}.")
    if gpu.driver is None:
        yield Finding("note", "gpu", f"NVIDIA's driver ({DRIVER}) is missing, so that no GPU is used: install it.")
    if gpu.devices and gpu.visible is not None:
        fix = "unset it, or let it name GPUs"
        yield Finding("note", "gpu", f"CUDA_VISIBLE_DEVICES='{gpu.visible}' lets TensorFlow see no GPU: {fix}.")
    if gpu.missing:
        fix = f"run \"pip install 'tensorflow[and-cuda]=={installed.versions['tensorflow']}'\""
        named = ", ".join(gpu.missing)
        yield Finding("note", "gpu", f"TensorFlow's libraries for GPUs are missing ({named}): {fix}.")
