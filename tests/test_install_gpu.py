"""What `install-horovod --gpu` would build with, by stand-ins; docs/install.md says when the real build was tried."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from keras_par.launch import install_horovod
from keras_par.launch.build_environment import (
    MOVED_HEADER,
    MOVED_HEADER_NOW,
    NCCL,
    TOOLKIT,
    Cuda,
    InstallError,
    add_cuda,
    add_headers,
    build_environment,
    find_cuda,
)


def make_toolkit(home: Path, version: str) -> Path:
    """A folder whose nvcc only says its version."""
    (home / "bin").mkdir(parents=True)
    compiler = home / "bin" / "nvcc"
    compiler.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.37'\n")
    compiler.chmod(0o755)
    return home


@pytest.fixture
def site(tmp_path):
    """The packages' folder of an environment with NVIDIA's."""
    make_toolkit(tmp_path / "site" / TOOLKIT, "13.5")
    for part in ("include", "lib"):
        (tmp_path / "site" / NCCL / part).mkdir(parents=True)
    (tmp_path / "site" / NCCL / "lib" / "libnccl.so.2").touch()
    (tmp_path / "site" / TOOLKIT / "lib").mkdir()
    (tmp_path / "site" / TOOLKIT / "lib" / "libcudart.so.13").touch()
    return tmp_path / "site"


def test_the_packages_compiler_is_taken_unless_a_toolkit_is_named(site, tmp_path):
    own = find_cuda({}, site)
    assert own == Cuda(site / "nvidia/cu13", "13.5", is_own=True) and own.key == "13.5-own"
    home = make_toolkit(tmp_path / "cuda", "12.4")
    other = find_cuda({"HOROVOD_CUDA_HOME": str(home)}, site)
    assert (other.home, other.version, other.is_own) == (home, "12.4", False)
    assert re.fullmatch(r"12\.4-[0-9a-f]{8}", other.key)


def test_a_missing_compiler_is_named(tmp_path):
    for environ in ({}, {"HOROVOD_CUDA_HOME": str(tmp_path)}):
        with pytest.raises(InstallError, match=r"the CUDA compiler '.*/bin/nvcc' does not start \(.*No such file"):
            find_cuda(environ, tmp_path)


def test_the_build_finds_the_packages_and_the_library_finds_nccl_again(site, tmp_path):
    environment = build_environment("mpi")
    before = environment.get("LDFLAGS", "")
    add_cuda(environment, find_cuda({}, site), tmp_path, site)
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["PATH"].split(os.pathsep)[0] == f"{environment['HOROVOD_CUDA_HOME']}/bin"
    assert Path(environment["HOROVOD_NCCL_LIB"], "libnccl.so").samefile(site / "nvidia/nccl/lib/libnccl.so.2")
    links, libraries = environment["CMAKE_LIBRARY_PATH"].split(os.pathsep)
    assert Path(links, "libcudart.so").samefile(Path(libraries, "libcudart.so.13"))
    assert environment["HOROVOD_NCCL_INCLUDE"] == str(site / "nvidia/nccl/include")
    own, rest = environment["LDFLAGS"].split(" ", 1)
    assert rest == before
    [way] = re.findall(r"-Wl,-rpath,'\$ORIGIN/(\S+)'", own)
    assert os.path.normpath(site / "horovod/tensorflow" / way) == str(site / "nvidia/nccl/lib")


def test_nccl_of_a_toolkit_of_the_machines_is_the_users_to_name(site, tmp_path):
    home = make_toolkit(tmp_path / "cuda", "12.4")
    environment = {"PATH": "/usr/bin"}
    add_cuda(environment, find_cuda({"HOROVOD_CUDA_HOME": str(home)}, site), tmp_path, site)
    assert environment == {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(home),
        "PATH": f"{home}/bin:/usr/bin",
    }


def test_packages_are_installed_only_where_they_are_used(monkeypatch):
    asked = []
    monkeypatch.setattr(install_horovod, "pip", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(
        importlib.metadata,
        "requires",
        lambda name: ['cmake<4; extra == "horovod"', 'nvidia-cuda-nvcc<14; extra == "gpu"', 'scipy; extra == "search"'],
    )
    for gpu, home in ((False, None), (True, None), (True, "/cuda")):
        monkeypatch.setenv("HOROVOD_CUDA_HOME", home) if home else monkeypatch.delenv(
            "HOROVOD_CUDA_HOME", raising=False
        )
        install_horovod.install_requirements(install_horovod.Console(quiet=True), "gloo", gpu)
    assert asked == [("install", "cmake<4"), ("install", "cmake<4", "nvidia-cuda-nvcc<14"), ("install", "cmake<4")]


def test_what_tensorflow_no_longer_has_is_in_the_header_that_it_moved(tmp_path):
    environment: dict[str, str] = {}
    add_headers(environment, tmp_path / "headers")
    include = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0], "include")
    (tmp_path / "ops.cc").write_text(f'#include "{MOVED_HEADER}"\n')
    moved_to = tmp_path / "none" / MOVED_HEADER_NOW  # in the place of TensorFlow's, which takes long
    moved_to.parent.mkdir(parents=True)
    moved_to.touch()
    folders = [f"-I{folder}" for folder in (tmp_path / "none", include)]
    command = ["c++", "-std=c++17", *folders, "-c", tmp_path / "ops.cc", "-o", tmp_path / "ops.o"]
    for flags, expected in (([], 0), (["-DHAVE_GPU=1"], 1)):
        subprocess.run([*command, *flags], env=os.environ | environment, check=True)
        names = subprocess.run(["nm", "--demangle", tmp_path / "ops.o"], capture_output=True, text=True, check=True)
        assert names.stdout.count(" T stream_executor::gpu::AsGpuStreamValue(stream_executor::Stream*)") == expected
