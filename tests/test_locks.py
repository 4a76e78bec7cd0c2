"""Two jobs with one folder: the second is told, or has its own; a dead one, wherever it ran, keeps nobody out."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from keras_par.base import lock
from keras_par.base.lock import TakenError, take
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.manifest import Manifest
from keras_par.launch.run_folder import RunFolder
from tests import checkpoint_tasks
from tests.ranks.pool import REPOSITORY, Failure


@contextlib.contextmanager
def holder(kind: str, path: Path) -> Iterator[subprocess.Popen]:
    """Another process that has a lock."""
    command = [sys.executable, "-m", "tests.lock_holder", kind, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().strip() in ("taken", str(path))
            yield process
        finally:
            process.kill()


def elsewhere(path: Path, age: float, **changes) -> lock.Owner:
    """Writes the lock of a process on another host that lived so many seconds ago."""
    owner = replace(lock.this_process(""), host="far", place="far", token="theirs", **changes)
    path.unlink(missing_ok=True)
    lock.write(path, owner)
    then = time.time() - age
    os.utime(path, (then, then))
    return owner


def test_a_process_that_lives_keeps_others_out_and_one_that_was_killed_does_not(tmp_path):
    path = tmp_path / "lock"
    with holder("lock", path) as process:
        with pytest.raises(TakenError, match=f"process {process.pid} on "):
            take(path)
        process.kill()
        process.wait()
        assert path.exists()
        mine = take(path)
    mine.check()
    assert take(path) is not mine  # this process's own, again
    mine.give_back()
    assert not list(tmp_path.iterdir())


def test_one_that_ends_gives_it_back(tmp_path):
    with holder("lock", tmp_path / "lock") as process:
        process.stdin.close()
        process.wait()
        assert not list(tmp_path.iterdir())


def test_a_lock_that_nobody_holds_any_more_is_given_back(tmp_path):
    mine = take(tmp_path / "lock")
    del mine
    assert not list(tmp_path.iterdir())


def test_one_elsewhere_is_dead_when_it_has_not_told_for_long(tmp_path):
    waited: list[lock.Owner] = []
    elsewhere(tmp_path / "lock", lock.DEAD_SECONDS + 1)
    take(tmp_path / "lock", "", waited.append).check()
    assert not waited


def test_one_elsewhere_that_says_nothing_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "DEAD_SECONDS", 2.0)
    waited: list[lock.Owner] = []
    owner = elsewhere(tmp_path / "lock", 1.0)
    take(tmp_path / "lock", "", waited.append).check()
    assert waited == [owner]
    elsewhere(tmp_path / "lock", 0.0)
    with pytest.raises(TakenError, match="on far"):
        take(tmp_path / "lock")  # who does not wait takes it for alive


def test_one_elsewhere_that_lives_keeps_others_out(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "DEAD_SECONDS", 600.0)
    elsewhere(tmp_path / "lock", 100.0)
    looked = threading.Event()

    def live() -> None:
        looked.wait()
        os.utime(tmp_path / "lock")

    thread = threading.Thread(target=live)
    thread.start()
    with pytest.raises(TakenError, match="on far"):
        take(tmp_path / "lock", "", lambda _: looked.set())
    thread.join()
    assert [each.name for each in tmp_path.iterdir()] == ["lock"]


def test_a_job_that_is_started_again_does_not_wait_for_itself(tmp_path):
    elsewhere(tmp_path / "lock", 0.0, job="it")
    take(tmp_path / "lock", "it").check()


def test_who_lost_a_lock_is_told_and_leaves_it_to_the_other(tmp_path):
    mine = take(tmp_path / "lock")
    elsewhere(tmp_path / "lock", 0.0)
    with pytest.raises(TakenError, match="on far"):
        mine.check()
    mine.give_back()
    assert json.loads((tmp_path / "lock").read_text())["token"] == "theirs"
    (tmp_path / "lock").unlink()
    again = take(tmp_path / "lock")
    (tmp_path / "lock").unlink()  # by somebody who clears the folder
    again.check()
    assert (tmp_path / "lock").exists()


FORGED = ["", "{", "[" * 5000, "3", "{}", "x" * 10_000, '{"pid": 1}']


@pytest.mark.parametrize("content", FORGED)
def test_a_file_that_says_nothing_counts_by_its_time(content, tmp_path):
    (tmp_path / "lock").write_text(content)
    with pytest.raises(TakenError, match="another process"):
        take(tmp_path / "lock")
    then = time.time() - lock.DEAD_SECONDS - 1
    os.utime(tmp_path / "lock", (then, then))
    take(tmp_path / "lock").check()


@pytest.mark.parametrize("change", [{"pid": "1"}, {"pid": -1}, {"pid": 2**70}, {"host": "a\nb"}, {"token": None}])
def test_an_owner_that_cannot_be_is_none(change, tmp_path):
    owner = asdict(lock.this_process("")) | change
    (tmp_path / "lock").write_text(json.dumps(owner))
    assert lock.read(tmp_path / "lock") is None


def test_a_second_run_has_a_folder_of_its_own(tmp_path):
    path = tmp_path / "log_output"
    with holder("run", path) as process:
        second = RunFolder(path)
        second.describe(of="the second")
        assert second.path == tmp_path / "log_output.1"
        assert second.note is not None and f"process {process.pid} on " in second.note
        assert second.note.endswith(f"this job's goes to '{second.path}'")
        assert json.loads((path / "run.json").read_text())["of"] == "the holder"
        second.close()
        process.kill()
        process.wait()
    third = RunFolder(path)
    assert third.path == path and third.note is None and not (path / "run.json").exists()
    assert json.loads((tmp_path / "log_output.2/run.json").read_text())["of"] == "the holder"
    third.close()
    assert not list(tmp_path.glob("*/lock*"))


def test_training_where_another_job_writes_is_refused_on_every_rank(ranks, tmp_path):
    with holder("lock", tmp_path / "CKP.lock") as process:
        results = ranks(2).attempt(checkpoint_tasks.fit_with_losses, folder=str(tmp_path), losses=[1.0])
        assert all(isinstance(result, Failure) for result in results) and len(results) == 2
        assert results[0].message == results[1].message
        assert f"another job, process {process.pid} on " in results[0].message
        assert "writes checkpoints 'CKP-*' to" in results[0].message
        other = ranks(2).run(checkpoint_tasks.fit_with_losses, folder=str(tmp_path), losses=[1.0], prefix="other")
        assert other == [["other-1_5"]] * 2
        process.kill()
        process.wait()
    assert ranks(2).run(checkpoint_tasks.fit_with_losses, folder=str(tmp_path), losses=[1.0]) == [["CKP-1_5"]] * 2
    assert not list(tmp_path.glob("*.lock*"))


def test_who_lost_the_folder_neither_completes_nor_removes(tmp_path):
    disk = Disk(tmp_path, "CKP", 1, 0)
    assert disk.open() is None
    manifest = Manifest("CKP-1_5", 1, in_a_row(1), 1, 0, None, 7, None, [], {}, [])
    elsewhere(tmp_path / "CKP.lock", 0.0)
    complaint = disk.complete(manifest)
    assert complaint is not None and "another job, process" in complaint
    assert not list(tmp_path.glob("*.json"))
    disk.close()
