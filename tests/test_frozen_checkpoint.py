"""What training does not change is written once: a checkpoint of adapters has a small part of the model's bytes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.load import load_checkpoint
from keras_par.checkpoint.manifest import CheckpointError, Manifest
from keras_par.checkpoint.reader import Reader
from keras_par.checkpoint.writer import Writer
from tests import frozen_checkpoint_tasks as tasks


def sizes(folder: Path) -> dict[str, int]:
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.glob("rank.*/*")}


@pytest.mark.parametrize("strategy", tasks.STRATEGIES)
def test_a_base_under_adapters_is_written_once_and_read_on_other_ranks(strategy, ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), strategy=strategy, epochs=3, keep=2)
    assert [result["size"] for result in results] == [2, 2]
    weights = results[0]["weights"]
    base = sum(array.nbytes for array in weights)

    frozen = {path: size for path, size in sizes(tmp_path).items() if manifests.FROZEN in path}
    writers = (0,) if strategy == "data" else (0, 1)
    assert set(frozen) == {manifests.frozen_file_of("CKP-1_4", rank) for rank in writers}  # whose own files are gone
    assert 0.95 * base < sum(frozen.values()) < base
    own = {path: size for path, size in sizes(tmp_path).items() if path not in frozen}
    assert set(own) == {manifests.file_of(name, rank) for name in ("CKP-2_4", "CKP-3_4") for rank in range(2)}
    for name in ("CKP-2_4", "CKP-3_4"):
        assert sum(size for path, size in own.items() if name in path) < 0.05 * base

    plain = tasks.adapted_model()
    assert load_checkpoint(tmp_path, plain).name == "CKP-3_4"
    assert all(np.array_equal(a, b) for a, b in zip(plain.get_weights(), weights, strict=True))

    ends = {}
    for size in (1, 2, 3) if strategy == "zero 3" else (1, 2):
        folder = shutil.copytree(tmp_path, tmp_path / f"on {size}", ignore=shutil.ignore_patterns("on *"))
        [ends[size], *_] = ranks(size).run(tasks.fit, folder=str(folder), strategy=strategy, epochs=4, keep=1)
        assert len(ends[size]["loss"]) == 1  # the fourth epoch alone
        for a, b in zip(ends[size]["weights"], ends[1]["weights"], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        written = {path for path in sizes(folder) if manifests.FROZEN in path}
        if strategy == "data" or size == 2:
            assert written == set(frozen)  # which the new job goes on with
        else:  # shards of two ranks are none of one or three
            assert written == {manifests.frozen_file_of("CKP-4_4", rank) for rank in range(size)}


class Alone:
    """What the writer needs of a communicator, of one rank."""

    rank, size = 0, 1

    def all_gather_object(self, value, name: str) -> list:
        return [json.loads(json.dumps(value))]


class Job:
    """A job of one rank that writes checkpoints of a base and of adapters to a folder.

    Args:
        folder: of the checkpoints.
        keep: how many of them stay.
    """

    def __init__(self, folder: Path, keep: int | None):
        self.folder, self.serial = folder, 0
        folders.rank_folder(folder, 0).mkdir(exist_ok=True)
        communicator: Any = Alone()
        self._writer = Writer(Disk(folder, "CKP", keep, 0), folder, True, communicator)
        self.frozen = self._writer.frozen

    def write(self, name: str, **arrays: np.ndarray) -> Manifest:
        self.serial += 1
        about = Manifest(name, self.serial, in_a_row(1), 1, 0, None, 7, None, [], {}, [])
        self._writer.begin(about, arrays, None, {"base", "statistics"})
        self._writer.finish()
        return folders.complete(self.folder, "CKP")[-1]

    def read(self, manifest: Manifest, name: str) -> np.ndarray:
        reader = Reader(self.folder, manifest)
        try:
            return reader.read(0, name)
        finally:
            reader.close()

    def remove_leftovers(self) -> None:
        found = folders.complete(self.folder, "CKP", unfit := [])
        names = [path.stem for path in self.folder.glob("*.json")]
        folders.remove_leftovers(self.folder, "CKP", 0, names, None if unfit else folders.frozen_files(found))


BASE = np.arange(40_000.0)


def number(value: float) -> np.ndarray:
    return np.full(3, value)


def test_what_has_changed_is_in_the_checkpoints_own_file(tmp_path):
    job = Job(tmp_path, keep=None)
    first = job.write("CKP-1_1", base=BASE, statistics=number(1), adapter=number(1))
    second = job.write("CKP-2_1", base=BASE, statistics=number(2), adapter=number(2))
    assert second.frozen == first.frozen and second.files[0].num_bytes < 0.01 * BASE.nbytes
    assert [job.read(each, "statistics")[0] for each in (first, second)] == [1, 2]
    third = job.write("CKP-3_1", base=BASE + 1, statistics=number(2), adapter=number(3))
    assert third.frozen != first.frozen
    assert [job.read(each, "base")[1] for each in (first, second, third)] == [1, 1, 2]


def test_a_run_that_is_set_back_writes_over_no_base_that_a_later_checkpoint_needs(tmp_path):
    job = Job(tmp_path, keep=1)
    for name in ("CKP-1_1", "CKP-2_1"):
        last = job.write(name, base=BASE, adapter=number(1))
    assert last.frozen[0].path == manifests.frozen_file_of("CKP-1_1", 0)
    assert not manifests.path_of(tmp_path, "CKP-1_1").exists()
    again = Job(tmp_path, keep=2)
    again.serial = job.serial
    again.remove_leftovers()
    other = again.write("CKP-1_1", base=BASE + 1, adapter=number(1))
    assert other.name == "CKP-1_1.2"
    assert [again.read(each, "base")[1] for each in (last, other)] == [1, 2]


def test_a_base_stays_as_long_as_a_checkpoint_may_name_it(tmp_path):
    job = Job(tmp_path, keep=None)
    for name in ("CKP-1_1", "CKP-2_1"):
        job.write(name, base=BASE, adapter=number(1))
    (tmp_path / "CKP-1_1.json").unlink()
    path, (base,) = tmp_path / "CKP-2_1.json", tmp_path.glob("rank.0/*.frozen.*")
    document = path.read_text()
    path.write_text(document[:-9])
    with pytest.warns(UserWarning, match="its manifest cannot be read"):
        job.remove_leftovers()
    assert base.exists()
    with pytest.warns(UserWarning, match="its manifest cannot be read"):
        folders.prune(tmp_path, "CKP", 1)
    assert base.exists()
    path.write_text(document)
    job.remove_leftovers()
    assert base.exists()
    path.unlink()
    job.remove_leftovers()
    assert not base.exists()


def test_a_base_that_somebody_has_removed_is_written_again(tmp_path):
    job = Job(tmp_path, keep=None)
    first = job.write("CKP-1_1", base=BASE, adapter=number(1))
    (tmp_path / first.frozen[0].path).unlink()
    second = job.write("CKP-2_1", base=BASE, adapter=number(2))
    assert (job.read(second, "base") == BASE).all()
    with pytest.raises(CheckpointError, match=r"its file rank\.0/CKP-1_1\.frozen\.safetensors cannot be read"):
        job.read(first, "base")


def test_a_base_of_an_earlier_job_is_taken_if_it_is_whole_and_the_same(tmp_path):
    first = Job(tmp_path, keep=None).write("CKP-1_1", base=BASE, adapter=number(1))
    path, file = tmp_path / first.frozen[0].path, first.frozen[0]

    def written(name: str, base: np.ndarray) -> str:
        job = Job(tmp_path, keep=None)
        job.serial = len(folders.complete(tmp_path, "CKP"))
        job.frozen.offer(path, file)
        manifest = job.write(name, base=base, adapter=number(2))
        assert (job.read(manifest, "base") == base).all()
        return manifest.frozen[0].path

    assert written("CKP-2_1", BASE) == file.path
    assert written("CKP-3_1", BASE + 1) == manifests.frozen_file_of("CKP-3_1", 0)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert written("CKP-4_1", BASE) == manifests.frozen_file_of("CKP-4_1", 0)


@pytest.mark.parametrize(
    "path",
    [
        "rank.1/CKP-1_1.frozen.safetensors",
        "rank.0/../CKP-1_1.frozen.safetensors",
        "rank.0/OTHER-1_1.frozen.safetensors",
        "rank.0/CKP-1_1.safetensors",
        "/CKP-1_1.frozen.safetensors",
    ],
)
def test_a_manifest_names_no_frozen_arrays_but_those_of_its_prefix(path, tmp_path):
    job = Job(tmp_path, keep=None)
    job.write("CKP-1_1", base=BASE, adapter=number(1))
    manifest = tmp_path / "CKP-1_1.json"
    document = json.loads(manifest.read_text())
    document["checkpoint"]["frozen"][0]["path"] = path
    document["checksum"] = manifests.checksum(document["checkpoint"])
    manifest.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="its manifest is wrong in the field 'frozen'"):
        manifests.read(manifest)
