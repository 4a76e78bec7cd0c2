"""What RankCheckpoint writes, and that nothing else is taken for it: one sentence, no file touched, no pickle read."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import tensorflow as tf

from keras_par.checkpoint import callback_states
from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.files import write_arrays
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.load import load_checkpoint
from keras_par.checkpoint.manifest import CheckpointError, File, Manifest
from tests import checkpoint_tasks
from tests.jobs import start, write_script
from tests.ranks.pool import Failure


@pytest.fixture(scope="module")
def written(ranks, tmp_path_factory) -> Path:
    """A folder with the checkpoints of 2 ranks after epochs 1 and 2, and their weights in a file."""
    folder = tmp_path_factory.mktemp("written")
    results = ranks(2).run(checkpoint_tasks.fit, folder=str(folder), data="arrays", epochs=2, every="epoch")
    weights = [[[w.tolist() for w in epoch] for epoch in result["at epoch ends"].values()] for result in results]
    (folder / "weights").write_text(json.dumps(weights))
    return folder


@pytest.fixture
def copy(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "copy"))


def rewrite(folder: Path, change) -> None:
    """Changes the newest manifest's document and makes its checksum right again."""
    path = folder / "CKP-2_5.json"
    document = json.loads(path.read_text())
    change(document)
    document["checksum"] = manifests.checksum(document["checkpoint"])
    path.write_text(json.dumps(document))


def in_manifest(folder: Path, **fields) -> None:
    rewrite(folder, lambda document: document["checkpoint"].update(fields))


def path_in_manifest(folder: Path, path: str) -> None:
    rewrite(folder, lambda document: document["checkpoint"]["files"][1].update(path=path))


def edit(path: Path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


def flipped(folder: Path) -> None:
    def change(data: bytes) -> bytes:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]

    edit(folder / "rank.1/CKP-2_5.safetensors", change)


def outside(folder: Path) -> None:
    """A file of the folder's neighbour, whose size and checksum are right."""
    shutil.copyfile(folder / "rank.1/CKP-2_5.safetensors", folder.parent / "victim")
    path_in_manifest(folder, "../victim")


def absolute(folder: Path) -> None:
    path_in_manifest(folder, str((folder / "rank.1/CKP-2_5.safetensors").absolute()))


def another_name(folder: Path) -> None:
    in_manifest(folder, name="../CKP-2_5")


def missing(folder: Path) -> Path:
    (path := folder / "rank.1/CKP-2_5.safetensors").unlink()
    return path


def linked_folder(folder: Path) -> None:
    (folder / "rank.1").rename(folder / "there")
    (folder / "rank.1").symlink_to(folder / "there")


def pickled(folder: Path) -> None:
    """A file whose checksum is right and which holds an object that only pickle could load."""
    path = folder / "rank.0/CKP-2_5.safetensors"
    with path.open("wb") as file:
        np.savez(file, **{"model/dense#0/kernel#0": np.array([print], dtype=object)})
    data = path.read_bytes()
    about = {"path": "rank.0/CKP-2_5.safetensors", "num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(folder, lambda document: document["checkpoint"]["files"].__setitem__(0, about))


def manifest(folder: Path) -> Path:
    return folder / "CKP-2_5.json"


WRONG_FIELD = "is damaged, its manifest is wrong in the field"
# What is done to the newest checkpoint, and what is said of it.
DAMAGES = {
    "a neighbour's file": (outside, f"{WRONG_FIELD} 'files'"),
    "an absolute path": (absolute, f"{WRONG_FIELD} 'files'"),
    "another name": (another_name, f"{WRONG_FIELD} 'name'"),
    "a link to bytes without end": (
        lambda folder: missing(folder).symlink_to("/dev/zero"),
        "is damaged, its file rank.1/CKP-2_5.safetensors cannot be read (it is a link",
    ),
    "a pipe into which nobody writes": (
        lambda folder: os.mkfifo(missing(folder)),
        "is damaged, its file rank.1/CKP-2_5.safetensors cannot be read (it is a pipe",
    ),
    "a deep document": (
        lambda folder: manifest(folder).write_text("[" * 100_000),
        "is damaged, its manifest cannot be read (maximum recursion depth",
    ),
    "other kinds": (lambda folder: in_manifest(folder, variables=3), f"{WRONG_FIELD} 'variables'"),
    "a missing field": (
        lambda folder: rewrite(folder, lambda document: document["checkpoint"].pop("mesh")),
        f"{WRONG_FIELD} 'mesh'",
    ),
    "no ranks": (
        lambda folder: rewrite(folder, lambda document: document["checkpoint"]["mesh"].update(ranks=[])),
        f"{WRONG_FIELD} 'mesh.ranks'",
    ),
    "another shape": (
        lambda folder: rewrite(folder, lambda document: document["checkpoint"]["variables"][0].update(shape=[1])),
        "is damaged, its file rank.0/CKP-2_5.safetensors lacks variable",
    ),
    "a short file": (
        lambda folder: edit(folder / "rank.0/CKP-2_5.safetensors", lambda data: data[:-100]),
        "is damaged, its file rank.0/CKP-2_5.safetensors has",
    ),
    "a flipped bit": (flipped, "is damaged, its file rank.1/CKP-2_5.safetensors does not fit its checksum"),
    "a missing file": (missing, "is damaged, its file rank.1/CKP-2_5.safetensors cannot be read"),
    "half a manifest": (
        lambda folder: edit(manifest(folder), lambda data: data[:500]),
        "is damaged, its manifest cannot be read",
    ),
    "an edited manifest": (
        lambda folder: edit(manifest(folder), lambda data: data.replace(b'"epoch": 2', b'"epoch": 3')),
        "is damaged, its manifest does not fit its checksum",
    ),
    "a foreign document": (
        lambda folder: manifest(folder).write_text('{"model": "something else"}'),
        "is no checkpoint of keras-par",
    ),
    "a newer form": (
        lambda folder: rewrite(folder, lambda document: document.update(version=manifests.VERSION + 1)),
        "has format 6, but this version of keras-par reads formats 4 to 5 alone",
    ),
    "an older form": (
        lambda folder: rewrite(folder, lambda document: document.update(version=3)),
        "has format 3, but this version of keras-par reads formats 4 to 5 alone",
    ),
    "no form": (
        lambda folder: rewrite(folder, lambda document: document.pop("version")),
        f"{WRONG_FIELD} 'version'",
    ),
    "a pickled object": (pickled, "is damaged, its file rank.0/CKP-2_5.safetensors holds no arrays"),
}
ADVICE = {"a foreign document": "keras-par checkpoint"}  # else an older one
ADVICE |= dict.fromkeys(["a newer form", "an older form"], "install the version of keras-par that wrote it")


def contents(folder: Path) -> dict:
    return {str(path): path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def untrained():
    """A model to load checkpoints into, in this process, which is no rank."""
    return checkpoint_tasks.model()


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused_and_left_alone_and_the_one_before_is_found(damage, copy, untrained):
    act, what = DAMAGES[damage]
    act(copy)
    before = contents(copy)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(copy / "CKP-2_5.json", untrained)
    sentence = str(refused.value)
    assert sentence.startswith("keras-par: ") and "\n" not in sentence
    assert what in sentence and ADVICE.get(damage, "use an older one") in sentence and "CKP-2_5" in sentence
    with pytest.warns(UserWarning, match=re.escape(what)):
        found = folders.newest_whole(copy, "CKP")
    assert found is not None and found.manifest.name == "CKP-1_5"
    found.close()
    assert contents(copy) == before


def test_resuming_takes_the_one_before_and_warns_once_of_that_and_of_another_seed(copy, ranks):
    flipped(copy)
    results = ranks(2).run(checkpoint_tasks.resume_only, folder=str(copy), seed=22)
    assert [result["from"] for result in results] == ["CKP-1_5", "CKP-1_5"]
    damaged, seed = results[0]["warnings"]
    assert DAMAGES["a flipped bit"][1] in damaged
    assert "TensorFlow's seed is 22, but was 21 when checkpoint 'CKP-1_5' was written" in seed
    assert results[1]["warnings"] == []


@pytest.mark.parametrize("damage", [outside, absolute, another_name, linked_folder], ids=lambda each: each.__name__)
def test_pruning_removes_nothing_that_a_forged_manifest_names(damage, copy):
    damage(copy)
    (copy / "rank.2").symlink_to(copy / "rank.0")
    before = contents(copy)
    for rank in folders.ranks_without_process(copy, 0):
        folders.remove_leftovers(copy, "CKP", rank, ["CKP-2_5"], [])  # CKP-1_5 has no manifest that this rank knows of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is forged
        complaint = Disk(copy, "CKP", 1, 0).complete(
            Manifest(
                "CKP-3_5", 3, in_a_row(1), 3, 0, None, 7, None, [], {}, [File(manifests.file_of("CKP-3_5", 0), 0, "")]
            )
        )
    assert complaint is None
    gone = {Path(path).relative_to(copy).as_posix() for path in set(before) - set(contents(copy))}
    files = {manifests.file_of(name, rank) for name, rank in (("CKP-1_5", 0), ("CKP-1_5", 1), ("CKP-2_5", 0))}
    assert gone <= {"CKP-1_5.json", "CKP-2_5.json", *files}


def one_sentence(results: list) -> str:
    """What all ranks say as they fail."""
    assert len(results) == 2 and all(isinstance(result, Failure) for result in results), results
    assert results[0].message == results[1].message
    return results[0].message


def test_nothing_whole_is_an_error_on_every_rank_not_a_new_start(copy, ranks):
    for path in copy.rglob("*.safetensors"):
        path.write_bytes(b"")
    sentence = one_sentence(ranks(2).attempt(checkpoint_tasks.resume_only, folder=str(copy)))
    assert "none of the checkpoints 'CKP-*'" in sentence


def test_a_folder_of_an_older_format_is_an_error_on_every_rank_not_a_new_start(copy, ranks):
    (copy / "CKP-1_5.json").unlink()
    rewrite(copy, lambda document: document.update(version=3))
    before = contents(copy)
    sentence = one_sentence(ranks(2).attempt(checkpoint_tasks.resume_only, folder=str(copy)))
    assert "has format 3, but this version of keras-par reads formats 4 to 5 alone: install the version" in sentence
    assert contents(copy) == before


def test_a_folder_of_format_4_which_had_no_frozen_arrays_is_read(copy, untrained):
    def change(document: dict) -> None:
        document.update(version=4)
        del document["checkpoint"]["frozen"]

    now = load_checkpoint(copy / "CKP-2_5", untrained)
    weights = untrained.get_weights()
    rewrite(copy, change)
    untrained.set_weights([np.zeros_like(each) for each in weights])
    assert load_checkpoint(copy / "CKP-2_5", untrained) == dataclasses.replace(now, frozen=[])
    assert all(np.array_equal(a, b) for a, b in zip(untrained.get_weights(), weights, strict=True))


def test_safetensors_own_tools_read_every_dtype(tmp_path):
    dtypes = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "bfloat16"]
    numbers = np.arange(6).reshape(2, 3)
    arrays: dict = {dtype: numbers.astype(tf.as_dtype(dtype).as_numpy_dtype) for dtype in dtypes}
    arrays |= {"scalar": np.array(3.0), "empty": np.zeros([0, 4], "float32"), "turned": numbers.T}
    write_arrays(tmp_path / "x", arrays)
    found = safetensors.numpy.load_file(tmp_path / "x")
    others = safetensors.torch.load_file(tmp_path / "x")
    assert found.keys() == others.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and others[name].shape == found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)
        assert others[name].tolist() == array.tolist()


@pytest.mark.parametrize("state", [["ab", "c"], np.array(7, ">i4"), [1j], np.datetime64("2026-11-28"), b"\0a"], ids=str)
def test_arrays_of_any_dtype_that_callbacks_remember_come_back(state, tmp_path):
    state, parts = np.array(state), []
    document = json.loads(json.dumps(callback_states.encoded(state, parts)))
    write_arrays(tmp_path / "x", {str(number): part for number, part in enumerate(parts)})
    with safetensors.safe_open(tmp_path / "x", "np") as file:
        found = np.asarray(callback_states.decoded(document, lambda number: file.get_tensor(str(number))))
    assert found.dtype == state.dtype.newbyteorder("=") and found.shape == state.shape and (found == state).all()


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(copy, ranks):
    sentence = one_sentence(ranks(2).attempt(checkpoint_tasks.fit, folder=str(copy), data="arrays", smooth=True))
    assert "the checkpoint does not fit the model: it has 'model/sequential/batch_normalization/gamma'" in sentence


LOADS = """
    import sys
    from pathlib import Path

    import numpy as np

    import keras_par as kp
    from tests.checkpoint_tasks import model

    folder, results = map(Path, sys.argv[1:])
    for number, name in enumerate(["", "CKP-2_5", "CKP-2_5.json", "CKP-1_5"]):
        trained = model()
        manifest = kp.load_checkpoint(folder / name, trained)
        print("loaded", manifest.name, manifest.epoch, manifest.step, "")
        np.savez(results / f"{number}.npz", *trained.get_weights())
    print([name for name in ("horovod", "mpi4py") if name in sys.modules])
"""


def test_load_checkpoint_in_a_plain_script(written, tmp_path):
    """Of a folder it takes the newest; nothing of a job is imported."""
    job = start("python", 1, write_script(tmp_path, LOADS), str(written), str(tmp_path))
    assert job.status == 0, job.output
    newest = ("CKP-2_5", "2", "0")
    assert job.find(r"loaded (\S+) (\d) (\d) ") == [newest, newest, newest, ("CKP-1_5", "1", "0")]
    assert "[]" in job.output
    at_epoch_ends, _ = json.loads((written / "weights").read_text())
    for number, epoch in enumerate([2, 2, 2, 1]):
        with np.load(tmp_path / f"{number}.npz") as loaded:
            for name, theirs in zip(loaded.files, at_epoch_ends[epoch - 1], strict=True):
                np.testing.assert_array_equal(loaded[name], np.asarray(theirs, loaded[name].dtype))


@pytest.mark.parametrize("folder", ["", "none"])
def test_there_is_no_checkpoint_is_a_sentence(folder, tmp_path, untrained):
    with pytest.raises(CheckpointError, match="keras-par: there is no checkpoint"):
        load_checkpoint(tmp_path / folder, untrained)


def test_only_the_best_is_kept(ranks, tmp_path):
    options = {"save_best_only": True, "monitor": "loss", "every": "epoch", "keep": None}
    first, second = ranks(2).run(
        checkpoint_tasks.fit_with_losses, folder=str(tmp_path), losses=[3, 5, 2, 4, 1], **options
    )
    assert first == second == ["CKP-1_5", "CKP-3_5", "CKP-5_5"]
    # A resumed run knows what was best before.
    first, second = ranks(2).run(checkpoint_tasks.fit_with_losses, folder=str(tmp_path), losses=[4, 0.5], **options)
    assert first == second == ["CKP-1_5", "CKP-2_5", "CKP-3_5", "CKP-5_5"]


def test_by_the_clock_of_rank_0_on_all_ranks(ranks, tmp_path):
    first, second = ranks(2).run(checkpoint_tasks.by_the_clock, folder=str(tmp_path), period=4.0)
    assert first == second == ["CKP-1_4", "CKP-2_3", "CKP-3_2", "CKP-4_1", "CKP-4_5", "CKP-5_4"]


def test_a_file_is_on_the_disk_before_it_has_its_name_and_that_before_writing_ends(tmp_path, monkeypatch):
    """So that a crash of the machine leaves no name without its bytes."""
    path, synced, fsync = tmp_path / "CKP-1_5.safetensors", [], os.fsync

    def noted(descriptor):
        synced.append((os.fstat(descriptor), path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    num_bytes, _ = write_arrays(path, {"model/a": np.ones([300, 100])})
    [(of_file, has_name), (of_folder, is_there)] = synced
    assert os.path.samestat(of_file, path.stat()) and of_file.st_size == num_bytes and not has_name
    assert os.path.samestat(of_folder, tmp_path.stat()) and is_there


def test_writing_does_not_keep_a_step_waiting(ranks, tmp_path):
    for result in ranks(2).run(checkpoint_tasks.slow_disk, folder=str(tmp_path), duration=1.0):
        assert result["longest save"] < 1.0, result  # which the disk takes at least
        assert result["names"] == ["CKP-1_1", "CKP-1_5"]  # what fell due meanwhile was left out


def test_a_fit_after_one_that_failed_keeps_what_was_being_written(ranks, tmp_path):
    # The first was at step 3 when it failed at step 4; the second comes to step 3 again, under another name.
    results = ranks(2).run(checkpoint_tasks.fail_and_fit_again, folder=str(tmp_path), duration=0.5)
    assert results == [["CKP-1_3", "CKP-1_3.2"]] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_rank_ends_all_with_a_sentence_and_gives_the_folder_back(rank, ranks, tmp_path):
    message = one_sentence(ranks(2).attempt(checkpoint_tasks.full_disk, folder=str(tmp_path), rank=rank))
    assert f"rank.{rank}/CKP-1_5.safetensors' cannot be written (No space left on device): make room" in message
    assert message.endswith(f"(on rank {rank})")
    assert not list(tmp_path.glob("*.json")) and not list(tmp_path.glob("*.lock*"))


WRONG = [
    ({"every": 0}, "every=0"),
    ({"every_seconds": 0}, "every_seconds=0"),
    ({"keep": 0}, "keep=0"),
    ({"prefix": "a/b"}, "prefix='a/b'"),
    ({"save_best_only": True, "every": 3}, "compares whole epochs"),
    ({"save_best_only": True, "mode": "best"}, "mode='best'"),
    ({"save_best_only": True, "monitor": "val_thing"}, "does not tell whether less is better"),
]


def test_arguments_that_cannot_be_are_refused(ranks, tmp_path):
    for found in ranks(2).run(checkpoint_tasks.refusals, folder=str(tmp_path), options=[each for each, _ in WRONG]):
        for (options, sentence), said in zip(WRONG, found, strict=True):
            assert said.startswith("ValueError: ") and sentence in said, options
