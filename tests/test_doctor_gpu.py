"""What `keras-par doctor` says about GPUs, by stand-ins for the driver and for what TensorFlow sees."""

import dataclasses
import importlib.metadata
import subprocess

import pytest

from keras_par.doctor import diagnosis, gpu, host, installed
from keras_par.doctor.diagnosis import Report
from keras_par.doctor.gpu import Gpu
from keras_par.doctor.installed import Loaded

BUILT = {"mpi": True, "gloo": True, "nccl": True}
WHOLE = Gpu(devices=2, driver="13.0", missing=[], visible=None)
NONE = Gpu(devices=0, driver=None, missing=["nvidia-cublas-cu12"], visible=None)
DRIVER = """
extern "C" int cuDriverGetVersion(int* version) { *version = 12040; return %d; }
"""


def said(found: Gpu, has_nccl: bool, seen: int) -> list[str]:
    loaded = Loaded(BUILT | {"nccl": has_nccl}, gpus=seen)
    findings = list(gpu.check(found, installed.find(), loaded))
    assert {(finding.severity, finding.check) for finding in findings} <= {("note", "gpu")}
    return [finding.text for finding in findings]


@pytest.mark.parametrize(("found", "has_nccl", "seen"), [(WHOLE, True, 2), (NONE, False, 0)])
def test_there_is_nothing_to_say_where_all_is_there_or_none_is_wanted(found, has_nccl, seen):
    assert said(found, has_nccl, seen) == []


def test_a_host_without_gpus_is_told_what_a_horovod_for_gpus_lacks():
    first, second, third = said(NONE, True, 0)
    assert "built with NCCL but there is no GPU of NVIDIA's here" in first
    assert "NVIDIA's driver (libcuda.so.1) is missing" in second
    version = importlib.metadata.version("tensorflow")
    assert third.endswith(f"(nvidia-cublas-cu12): run \"pip install 'tensorflow[and-cuda]=={version}'\".")


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        ({"driver": None}, "NVIDIA's driver (libcuda.so.1) is missing"),
        ({"missing": ["nvidia-cudnn-cu12"]}, "libraries for GPUs are missing (nvidia-cudnn-cu12)"),
        ({"visible": ""}, "CUDA_VISIBLE_DEVICES='' lets TensorFlow see no GPU: unset it"),
    ],
)
def test_what_keeps_tensorflow_from_gpus_is_named(lost, text):
    for has_nccl in (False, True):
        [sentence] = said(dataclasses.replace(WHOLE, **lost), has_nccl, 0)
        assert text in sentence


def test_a_horovod_without_nccl_is_named():
    [sentence] = said(WHOLE, False, 2)
    assert "TensorFlow sees 2 GPU(s) but Horovod was built without NCCL" in sentence
    assert sentence.endswith("run 'keras-par install-horovod --gpu'.")


def test_without_horovod_nothing_is_said_of_how_it_was_built():
    loaded = Loaded(dict.fromkeys(BUILT, False), gpus=2, with_horovod=False)
    [finding] = gpu.check(WHOLE, installed.find(), loaded)
    assert finding.text == (
        "TensorFlow sees 2 GPU(s) but its own collectives sum in the host's memory: run 'keras-par install-horovod "
        "--gpu' to have NCCL."
    )


@pytest.mark.parametrize("has_nccl", [False, True])
def test_as_many_ranks_as_gpus_are_recommended(has_nccl):
    """Without NCCL they sum over the host."""
    report = Report(installed.find(), host.measure(), WHOLE, Loaded(BUILT | {"nccl": has_nccl}, gpus=2))
    recommended = diagnosis.recommend(report, None)
    assert recommended is not None and recommended.ranks == 2


@pytest.mark.parametrize(("status", "version"), [(0, "12.4"), (100, None)])
def test_the_driver_says_which_cuda_it_knows(status, version, tmp_path):
    (tmp_path / "driver.cc").write_text(DRIVER % status)
    library = tmp_path / f"libcuda-{status}.so"
    subprocess.run(["c++", "-shared", "-fPIC", tmp_path / "driver.cc", "-o", library], check=True)
    assert gpu.driver(str(library)) == version
    assert gpu.driver(str(tmp_path / "none.so")) is None


def test_missing_libraries_are_those_that_tensorflow_asks_for(monkeypatch):
    wanted = [
        'nvidia-cublas-cu12<13.0,>=12.5.3.2; extra == "and-cuda"',
        'numpy-like-no-other<2; extra == "other"',
        'numpy<13.0; extra == "and-cuda"',
        "absl-py>=1.0.0",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted if name == "tensorflow" else None)
    assert gpu.missing_libraries() == ["nvidia-cublas-cu12"]
