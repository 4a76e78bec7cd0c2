"""What RankCheckpoint writes, and that nothing else is taken for it: one sentence, no file touched, no pickle read."""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from keras_par.checkpoint import folder as folders
from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.manifest import File, Manifest
from tests import checkpoint_tasks
from tests.jobs import start, write_script
from tests.ranks.pool import Failure


@pytest.fixture(scope="module")
def written(ranks, tmp_path_factory) -> Path:
    """A folder with the checkpoints of 2 ranks after epochs 1 and 2, and their weights in a file."""
    folder = tmp_path_factory.mktemp("written")
    results = ranks(2).run(checkpoint_tasks.fit, folder=str(folder), data="arrays", epochs=2, every="epoch")
    weights = [[[w.tolist() for w in epoch] for epoch in result["at epoch ends"]] for result in results]
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


def truncated(folder: Path):
    path = folder / "rank.0/CKP-2_5.npz"
    path.write_bytes(path.read_bytes()[:-100])


def flipped(folder: Path):
    path = folder / "rank.1/CKP-2_5.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def missing(folder: Path):
    (folder / "rank.1/CKP-2_5.npz").unlink()


def half_a_manifest(folder: Path):
    path = folder / "CKP-2_5.json"
    path.write_text(path.read_text()[:500])


def edited_manifest(folder: Path):
    path = folder / "CKP-2_5.json"
    path.write_text(path.read_text().replace('"epoch": 2', '"epoch": 3'))


def outside(folder: Path):
    """A file of the folder's neighbour, whose size and checksum are right."""
    data = (folder / "rank.1/CKP-2_5.npz").read_bytes()
    (folder.parent / "victim").write_bytes(data)
    rewrite(folder, lambda document: document["checkpoint"]["files"][1].update(path="../victim"))


def absolute(folder: Path):
    victim = str((folder / "rank.1/CKP-2_5.npz").absolute())
    rewrite(folder, lambda document: document["checkpoint"]["files"][1].update(path=victim))


def another_name(folder: Path):
    rewrite(folder, lambda document: document["checkpoint"].update(name="../CKP-2_5"))


def linked(folder: Path):
    """A link to what gives bytes without end."""
    missing(folder)
    (folder / "rank.1/CKP-2_5.npz").symlink_to("/dev/zero")


def piped(folder: Path):
    """A pipe into which nobody writes."""
    missing(folder)
    os.mkfifo(folder / "rank.1/CKP-2_5.npz")


def linked_folder(folder: Path):
    (folder / "rank.1").rename(folder / "there")
    (folder / "rank.1").symlink_to(folder / "there")


def deep(folder: Path):
    (folder / "CKP-2_5.json").write_text("[" * 100_000)


def of_no_rank(folder: Path):
    """As the first version wrote it, without the number of ranks."""

    def change(document):
        document["version"] = 1
        document["checkpoint"] |= {"layout": "replicated"}
        del document["checkpoint"]["mesh"], document["checkpoint"]["stopped"]

    rewrite(folder, change)


def of_other_kinds(folder: Path):
    rewrite(folder, lambda document: document["checkpoint"].update(variables=3))


def without_a_field(folder: Path):
    rewrite(folder, lambda document: document["checkpoint"].pop("mesh"))


def without_ranks(folder: Path):
    rewrite(folder, lambda document: document["checkpoint"]["mesh"].update(ranks=[]))


def of_other_shape(folder: Path):
    rewrite(folder, lambda document: document["checkpoint"]["variables"][0].update(shape=[1]))


def foreign(folder: Path):
    (folder / "CKP-2_5.json").write_text('{"model": "something else"}')


def newer(folder: Path):
    rewrite(folder, lambda document: document.update(version=manifests.VERSION + 1))


def pickled(folder: Path):
    """A file whose checksum is right and which holds an object that only pickle could load."""
    path = folder / "rank.0/CKP-2_5.npz"
    np.savez(path, **{"model/dense#0/kernel#0": np.array([print], dtype=object)})
    data = path.read_bytes()
    about = {"path": "rank.0/CKP-2_5.npz", "num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(folder, lambda document: document["checkpoint"]["files"].__setitem__(0, about))


RANKS_FILES = ("is damaged, its manifest is wrong in the field 'files'", "use an older one")
DAMAGES = {
    outside: RANKS_FILES,
    absolute: RANKS_FILES,
    another_name: ("is damaged, its manifest is wrong in the field 'name'", "use an older one"),
    linked: ("is damaged, its file rank.1/CKP-2_5.npz cannot be read (it is a link", "use an older one"),
    piped: ("is damaged, its file rank.1/CKP-2_5.npz cannot be read (it is a pipe", "use an older one"),
    deep: ("is damaged, its manifest cannot be read (maximum recursion depth", "use an older one"),
    of_no_rank: ("is damaged, its manifest is wrong in the field 'world_size'", "use an older one"),
    of_other_kinds: ("is damaged, its manifest is wrong in the field 'variables'", "use an older one"),
    without_a_field: ("is damaged, its manifest is wrong in the field 'mesh'", "use an older one"),
    without_ranks: ("is damaged, its manifest is wrong in the field 'mesh.ranks'", "use an older one"),
    of_other_shape: ("is damaged, its file rank.0/CKP-2_5.npz lacks variable", "use an older one"),
    truncated: ("is damaged, its file rank.0/CKP-2_5.npz has", "use an older one"),
    flipped: ("is damaged, its file rank.1/CKP-2_5.npz does not fit its checksum", "use an older one"),
    missing: ("is damaged, its file rank.1/CKP-2_5.npz cannot be read", "use an older one"),
    half_a_manifest: ("is damaged, its manifest cannot be read", "use an older one"),
    edited_manifest: ("is damaged, its manifest does not fit its checksum", "use an older one"),
    foreign: ("is no checkpoint of keras-par", "keras-par checkpoint"),
    newer: ("has format 4, but this version of keras-par reads up to 3", "update keras-par"),
    pickled: ("is damaged, its file rank.0/CKP-2_5.npz holds no arrays", "use an older one"),
}


def contents(folder: Path) -> dict:
    return {str(path): path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_what_is_damaged_is_refused_and_left_alone(damage, copy, ranks):
    damage(copy)
    before = contents(copy)
    [failure] = ranks(1).attempt(checkpoint_tasks.load, path=str(copy / "CKP-2_5.json"))
    assert isinstance(failure, Failure)
    what, advice = DAMAGES[damage]
    assert failure.kind == "CheckpointError"
    assert failure.message.startswith("keras-par: ")
    assert what in failure.message and advice in failure.message and "CKP-2_5" in failure.message
    assert "\n" not in failure.message
    assert contents(copy) == before


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_resuming_takes_the_one_before_and_warns(damage, copy, ranks):
    damage(copy)
    results = ranks(2).run(checkpoint_tasks.resume_only, folder=str(copy))
    assert [result["from"] for result in results] == ["CKP-1_5", "CKP-1_5"]
    first, second = (result["warnings"] for result in results)
    assert any(DAMAGES[damage][0] in message for message in first), first
    assert second == []


@pytest.mark.parametrize("damage", [outside, absolute, another_name, linked_folder], ids=lambda each: each.__name__)
def test_pruning_removes_nothing_that_a_forged_manifest_names(damage, copy):
    damage(copy)
    (copy / "rank.2").symlink_to(copy / "rank.0")
    before = contents(copy)
    for rank in folders.ranks_without_process(copy, 0):
        folders.remove_leftovers(copy, "CKP", rank, ["CKP-2_5"])  # CKP-1_5 has no manifest that this rank knows of
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is forged
        complaint = Disk(copy, "CKP", 1, 0).complete(
            Manifest("CKP-3_5", 3, in_a_row(1), 3, 0, None, 7, None, [], {}, [File("rank.0/CKP-3_5.npz", 0, "")])
        )
    assert complaint is None
    gone = {Path(path).relative_to(copy).as_posix() for path in set(before) - set(contents(copy))}
    assert gone <= {"CKP-1_5.json", "CKP-2_5.json", "rank.0/CKP-1_5.npz", "rank.1/CKP-1_5.npz", "rank.0/CKP-2_5.npz"}


def test_another_seed_is_warned_of(copy, ranks):
    first, second = ranks(2).run(checkpoint_tasks.resume_only, folder=str(copy), seed=22)
    [message] = first["warnings"]
    assert "TensorFlow's seed is 22, but was 21 when checkpoint 'CKP-2_5' was written" in message
    assert second["warnings"] == []


def test_nothing_whole_is_an_error_on_every_rank_not_a_new_start(copy, ranks):
    for path in copy.rglob("*.npz"):
        path.write_bytes(b"")
    results = ranks(2).attempt(checkpoint_tasks.resume_only, folder=str(copy))
    assert all(isinstance(result, Failure) for result in results) and len(results) == 2
    assert results[0].message == results[1].message
    assert "none of the checkpoints 'CKP-*'" in results[0].message


def test_a_checkpoint_of_another_model_is_refused_on_every_rank(copy, ranks):
    results = ranks(2).attempt(checkpoint_tasks.fit, folder=str(copy), data="arrays", smooth=True)
    assert all(isinstance(result, Failure) for result in results) and len(results) == 2
    assert results[0].message == results[1].message
    assert (
        "the checkpoint does not fit the model: it has 'model/sequential/batch_normalization/gamma'"
        in results[0].message
    )


@pytest.mark.parametrize("path", ["", "CKP-2_5", "CKP-2_5.json", "CKP-1_5"])
def test_load_checkpoint_in_one_process_without_horovod(path, written, ranks):
    [result] = ranks(1).run(checkpoint_tasks.load, path=str(written / path))
    assert result["name"] == (path.removesuffix(".json") or "CKP-2_5")
    assert (result["epoch"], result["step"]) == (int(result["name"][4]), 0)
    trained, _ = json.loads((written / "weights").read_text())
    for ours, theirs in zip(result["weights"], trained[result["epoch"] - 1], strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs, ours.dtype))


PLAIN = """
    import sys
    import keras
    import keras_par as kp
    from tests.checkpoint_tasks import model

    trained = model()
    manifest = kp.load_checkpoint(sys.argv[1], trained)
    loaded = [name for name in ("horovod", "mpi4py") if name in sys.modules]
    print(manifest.name, float(sum(abs(w).sum() for w in trained.get_weights())), loaded)
"""


def test_load_checkpoint_in_a_plain_script(written, tmp_path):
    job = start("python", 1, write_script(tmp_path, PLAIN), str(written))
    assert job.status == 0, job.output
    [(total, loaded)] = job.find(r"CKP-2_5 (\S+) (\[.*\])")
    trained, _ = json.loads((written / "weights").read_text())
    assert float(total) == pytest.approx(sum(np.abs(np.asarray(w)).sum() for w in trained[1]), rel=1e-6)
    assert loaded == "[]"


def test_there_is_no_checkpoint_is_a_sentence(tmp_path, ranks):
    for path in (tmp_path, tmp_path / "none"):
        [failure] = ranks(1).attempt(checkpoint_tasks.load, path=str(path))
        assert isinstance(failure, Failure) and "keras-par: there is no checkpoint" in failure.message


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
    results = ranks(2).run(checkpoint_tasks.by_the_clock, folder=str(tmp_path), period=0.4, pause=0.02)
    names, seconds = zip(*results, strict=True)
    assert names[0] == names[1]
    assert seconds[0] / 0.4 / 2 - 1 <= len(names[0]) <= seconds[0] / 0.4 + 1, results


def test_writing_does_not_keep_a_step_waiting(ranks, tmp_path):
    for result in ranks(2).run(checkpoint_tasks.slow_disk, folder=str(tmp_path), duration=1.0):
        assert result["longest save"] < 1.0, result  # which the disk takes at least
        assert result["names"] == ["CKP-1_1", "CKP-1_5"]  # what fell due meanwhile was left out


def test_a_fit_after_one_that_failed_keeps_what_was_being_written(ranks, tmp_path):
    # The first was at step 3 when it failed at step 4; the second comes to step 3 again, under another name.
    results = ranks(2).run(checkpoint_tasks.fail_and_fit_again, folder=str(tmp_path), duration=0.5)
    assert results == [["CKP-1_3", "CKP-1_3.2"]] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_on_one_rank_ends_all_with_a_sentence(rank, ranks, tmp_path):
    results = ranks(2).attempt(checkpoint_tasks.full_disk, folder=str(tmp_path), rank=rank)
    assert all(isinstance(result, Failure) for result in results) and len(results) == 2
    assert results[0].message == results[1].message
    message = results[0].message
    assert f"rank.{rank}/CKP-1_5.npz' cannot be written (No space left on device): make room" in message
    assert message.endswith(f"(on rank {rank})")
    assert not list(tmp_path.glob("*.json"))


WRONG = {
    "every": ({"every": 0}, "every=0"),
    "seconds": ({"every_seconds": 0}, "every_seconds=0"),
    "keep": ({"keep": 0}, "keep=0"),
    "prefix": ({"prefix": "a/b"}, "prefix='a/b'"),
    "best": ({"save_best_only": True, "every": 3}, "compares whole epochs"),
    "mode": ({"save_best_only": True, "every": "epoch", "mode": "best"}, "mode='best'"),
    "monitor": (
        {"save_best_only": True, "every": "epoch", "monitor": "val_thing"},
        "does not tell whether less is better",
    ),
}


@pytest.mark.parametrize("which", WRONG)
def test_arguments_that_cannot_be_are_refused(which, ranks, tmp_path):
    options, sentence = WRONG[which]
    for failure in ranks(2).attempt(checkpoint_tasks.fit, **{"folder": str(tmp_path), "data": "arrays", **options}):
        assert isinstance(failure, Failure)
        assert failure.kind == "ValueError" and sentence in failure.message
