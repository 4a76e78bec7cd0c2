"""The installer's decisions, without building: its environment, its cache, what it says when something fails."""

import importlib.machinery
import importlib.util
import itertools
import os
import re
import sys
import sysconfig
from pathlib import Path

import pytest
from rich.console import Console

from keras_par.base.environment import cache_folder
from keras_par.launch import build_environment, cli, install_horovod
from keras_par.launch.install_horovod import BuildKey, InstallError


def test_a_wheel_is_cached_by_all_it_depends_on():
    folder = BuildKey("2.21.0", "4.1.8").folder
    for part in ("horovod0.28.1", "tf2.21.0", f"cp{sys.version_info.major}{sys.version_info.minor}", "mpi4.1.8"):
        assert part in folder
    versions = (("2.20.0", "2.21.0"), ("4.1.8", "none"), ("none", "12.9-own", "13.5-own"))
    assert len({BuildKey(*key).folder for key in itertools.product(*versions)}) == 12


def test_the_engine_decides_what_is_built():
    with_mpi, without = (build_environment.build_environment(engine) for engine in ("mpi", "gloo"))
    assert with_mpi["HOROVOD_WITH_MPI"] == without["HOROVOD_WITHOUT_MPI"] == "1"
    assert "HOROVOD_WITHOUT_MPI" not in with_mpi and "HOROVOD_WITH_MPI" not in without
    assert with_mpi["HOROVOD_WITH_GLOO"] == without["HOROVOD_WITH_GLOO"] == "1"


def test_environments_with_an_mpi_of_their_own_share_a_wheel(tmp_path, monkeypatch):
    for folder in ("own", "other"):
        (tmp_path / folder).mkdir()
        mpirun = tmp_path / folder / "mpirun"
        mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
        mpirun.chmod(0o755)
    for module in (install_horovod, build_environment):
        monkeypatch.setattr(module, "scripts", lambda: tmp_path / "own")
    assert install_horovod.mpi_version(f"{tmp_path}/own/mpicxx") == "4.1.8-own"
    assert re.fullmatch(r"4\.1\.8-[0-9a-f]{8}", install_horovod.mpi_version(f"{tmp_path}/other/mpicxx"))
    [way] = re.findall(r"-Wl,-rpath,'\$ORIGIN/(\S+)'", build_environment.build_environment("mpi")["LDFLAGS"])
    library = Path(sysconfig.get_paths()["platlib"], "horovod/tensorflow")
    assert os.path.normpath(library / way) == os.path.join(sys.prefix, "lib")
    monkeypatch.setattr(build_environment, "scripts", lambda: tmp_path / "none")
    assert "$ORIGIN" not in build_environment.build_environment("mpi").get("LDFLAGS", "")


def test_a_moved_header_is_forwarded(tmp_path, monkeypatch):
    include = tmp_path / "tensorflow" / "include"
    (include / "xla/hlo/builder").mkdir(parents=True)
    (include / "xla/hlo/builder/xla_builder.h").touch()
    (include / "external/highwayhash").mkdir(parents=True)
    spec = importlib.machinery.ModuleSpec("tensorflow", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "tensorflow")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    environment = {"CPLUS_INCLUDE_PATH": "/mine"}
    headers = tmp_path / "headers"
    headers.mkdir()
    build_environment.add_headers(environment, headers)
    assert environment["CPLUS_INCLUDE_PATH"].split(os.pathsep) == [
        str(include / "external/highwayhash"),
        str(headers),
        "/mine",
    ]
    header = headers / "tensorflow/compiler/xla/client/xla_builder.h"
    assert header.read_text().splitlines()[0] == '#include "xla/hlo/builder/xla_builder.h"'


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("a\n/x/mpi_ops.cc:12:3: error: 'foo' was not declared\nb error: later", "'foo' was not declared"),
        ("CMake Error at CMakeLists.txt:3:\n  Could not find MPI\n", "Could not find MPI"),
        ("fine", "names no error"),
    ],
)
def test_the_first_error_of_a_build_is_found(log, said, tmp_path):
    path = tmp_path / "build.log"
    path.write_text(log)
    assert said in install_horovod.first_error(path)


def test_a_failing_build_says_what_and_leaves_no_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(install_horovod, "HOROVOD_VERSION", "0.0.0")  # there is none
    said = r"building Horovod 0\.0\.0 .* failed: .*horovod==0\.0\.0.*whole log: .*See docs/install\.md"
    with pytest.raises(InstallError, match=said):
        install_horovod.build(Console(quiet=True), BuildKey("2.0", "none"), tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_without_a_compiler_it_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InstallError, match=r"no C\+\+ compiler 'no-such-compiler': install one"):
        install_horovod.require_compiler()


def test_what_is_installed_already_is_not_built_again(capsys):
    assert cli.main(["install-horovod"]) == 0
    assert "is installed already" in capsys.readouterr().err


def test_the_cache_can_be_moved(monkeypatch):
    monkeypatch.setenv("KERAS_PAR_CACHE", "/somewhere")
    assert cache_folder() == Path("/somewhere")
