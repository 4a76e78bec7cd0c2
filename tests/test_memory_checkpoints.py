"""Checkpoints in the memory of hosts: who keeps whose, which one a job goes on from, and that nothing is left."""

import errno
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_par.base import host_memory
from keras_par.checkpoint import frozen
from keras_par.checkpoint import memory as memories
from keras_par.checkpoint import writer as writers
from keras_par.checkpoint.disk import Disk
from keras_par.checkpoint.grid import in_a_row
from keras_par.checkpoint.manifest import File, Manifest
from keras_par.checkpoint.memory import Memory, partners
from keras_par.checkpoint.rescue import Held, choice
from keras_par.checkpoint.writer import Writer
from keras_par.comm.communicator import SoloCommunicator
from tests import worlds
from tests.launcher import Job, of_kind, program, run
from tests.present import present

RARE, OFTEN = 1000, 3  # steps from one checkpoint to the next
FULL = Path("/dev/full")
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The last weights of two ranks."""
    return worlds.undisturbed(tmp_path_factory.mktemp("undisturbed"), 2)


class Kept:
    """What a job that runs keeps in memory here."""

    def __init__(self, job: Job):
        job.wait_until(lambda: worlds.ranks(job))
        self._job, self._token = job, worlds.ranks(job)[0].environ()[host_memory.JOB]

    def wait_for(self, name: str) -> None:
        """Returns once there is such a checkpoint."""
        self._job.wait_until(lambda: self.left(f"*/0.*/{name}.json"))

    def left(self, pattern: str = "") -> list[Path]:
        """The folders, or what a pattern means in them."""
        return present(host_memory.SHARED, f"keras-par-{self._token}-*/{pattern}")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9))
def test_every_host_has_each_rank_of_its_partners_in_some_group(sizes):
    hosts = [f"host-{number}" for number, size in enumerate(sizes) for _ in range(size)]
    groups = partners(hosts)
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(len(hosts)))
    assert all(ranks == sorted(ranks) for ranks in groups)
    kept_on = {rank: {hosts[other] for other in ranks} for ranks in groups for rank in ranks}
    wanted = {len(sizes)} if len(sizes) == 1 or len(hosts) in PRIMES else {2, 3}
    assert {len(names) for names in kept_on.values()} <= wanted
    for rank, host in enumerate(hosts):
        assert host in kept_on[rank]
        assert all(kept_on[other] == kept_on[rank] for other, name in enumerate(hosts) if name == host)


def held(serial: int, *ranks: int, sums: str = "ab") -> Held:
    return Held(f"folder-{serial}", f"CKP-1_{serial}", serial, [f"{serial}{each}" for each in sums], list(ranks))


@pytest.mark.parametrize(
    ("everywhere", "newest", "expected"),
    [
        ([[], []], 0, None),
        ([[held(3, 0, 1)], [held(3, 0, 1)]], 0, (3, {0: 0, 1: 0})),
        ([[held(3, 0)], [], [held(3, 1)]], 0, (3, {0: 0, 1: 2})),
        ([[held(3, 0, 1)], [held(3, 0, 1)]], 3, None),
        ([[held(4, 0), held(3, 0, 1)], [held(4, 0)]], 0, (3, {0: 0, 1: 0})),
        ([[held(4, 0)], [held(4, 1, sums="cd")]], 0, None),  # of two attempts
        ([[held(4, 1)], [held(5, 0, 1)]], 4, (5, {0: 1, 1: 1})),
    ],
)
def test_the_newest_that_hosts_have_together_is_taken(everywhere, newest, expected):
    found = choice(everywhere, newest)
    assert (None if found is None else (found[0].serial, found[1])) == expected


def test_the_newest_stays_until_all_ranks_have_the_next(tmp_path):
    memory = Memory(tmp_path / "job/run", SoloCommunicator())

    def begin(serial: int) -> Manifest:
        manifest = Manifest("CKP-1_1", serial, in_a_row(1), 0, 1, None, 7, None, [], {}, [])
        memory.path_for(manifest, "rank.0/CKP-1_1.safetensors").touch()
        return manifest

    def kept() -> list[str]:
        return sorted(path.name for path in (tmp_path / "job/run").iterdir())

    assert memory.complete(begin(1)) is None
    second = begin(2)
    assert kept() == ["0.1", "0.2"]
    assert memory.complete(second) is None
    assert kept() == ["0.1", "0.2"]
    begin(3)
    assert kept() == ["0.2", "0.3"]
    assert (tmp_path / "job").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("home", "advice"),
    [
        (lambda folder: Memory(folder / "job/run", SoloCommunicator()), "make room there, or leave out memory_every."),
        (lambda folder: Disk(folder, "CKP", None, 0), "make room, or give another folder."),
    ],
    ids=["memory", "disk"],
)
def test_where_there_is_no_room_what_helps_is_said(home, advice, tmp_path, monkeypatch):
    manifest = Manifest("CKP-1_1", 1, in_a_row(1), 0, 1, None, 7, None, [], {}, [])
    monkeypatch.setattr(writers, "write_arrays", no_room)
    monkeypatch.setattr(frozen, "write_arrays", no_room)
    for names, file in ((set(), "CKP-1_1.safetensors"), ({"model/a"}, "CKP-1_1.frozen.safetensors")):
        writer = Writer(home(tmp_path), tmp_path, False, SoloCommunicator())
        writer._write(manifest, {"model/a": np.zeros(3)}, names)
        assert writer._complaint is not None and file in writer._complaint
        assert writer._complaint.endswith(f"(No space left on device): {advice}")


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.long
def test_a_job_goes_on_from_memory_and_leaves_nothing(undisturbed, tmp_path):
    options = ["-np", 2, "--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    job = Job(*options, *worlds.arguments(tmp_path, every=(RARE, OFTEN)))
    kept = Kept(job)
    kept.wait_for("CKP-2_*")
    worlds.kill_rank(job, 1)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)
    [resume] = of_kind(tmp_path / "out", "resume")
    assert 0 < resume["steps_lost"] <= 2 * OFTEN
    [name] = re.findall(r"checkpoint (\S+) was in memory and is in '.*checkpoints' now", ended.stdout)
    assert resume["checkpoint"] == name and name.startswith("CKP-2_")
    assert not kept.left()


@pytest.mark.long
def test_the_same_callbacks_in_two_fits_and_in_any_order_go_on(tmp_path):
    (plain := tmp_path / "plain").mkdir()
    assert run("-np", 2, program("memory_fits"), "none", plain / "weights.npz").status == 0
    options = ["-np", 2, "--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    ended = run(*options, program("memory_fits"), tmp_path / "checkpoints", tmp_path / "weights.npz")
    assert ended.status == 0, ended.stderr
    assert worlds.are_equal(worlds.weights(tmp_path), worlds.weights(plain))
    names = [resume["checkpoint"] for resume in of_kind(tmp_path / "out", "resume")]
    assert names[0] == "CKP-2_20" and re.fullmatch(r"CKP-4_1[26]", names[1]) and names[2] == names[1]
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.json")] == ["CKP-5_20.json"]


class Two(threading.Barrier):
    """What two hosts with a rank each, which are threads, need of a communicator."""

    def __init__(self):
        super().__init__(2)
        self.values: list = [None, None]

    def together(self, rank: int, value) -> list:
        self.values[rank] = value
        self.wait(10)
        found = list(self.values)
        self.wait(10)
        return found


class Rank(SoloCommunicator):
    """One of them."""

    def __init__(self, rank: int, two: Two):
        self.rank, self._two = rank, two

    def all_gather_object(self, value, name):
        return self._two.together(self.rank, f"host {self.rank}" if name == "kp.checkpoint.hosts" else value)

    def all_gather(self, tensor, name):
        return tf.concat(self._two.together(self.rank, tensor), 0)

    def group(self, groups):
        return self


@pytest.mark.parametrize("fault", [None, "a folder", "full"])
def test_a_host_without_room_fails_all_and_leaves_no_manifest(fault, tmp_path, monkeypatch):
    two, results, length = Two(), {}, 3000
    monkeypatch.setattr(memories, "CHUNK_BYTES", 1024)
    if fault == "full":
        whole = memories.whole
        monkeypatch.setattr(memories, "whole", lambda path: FULL.open("wb") if "host-1" in str(path) else whole(path))

    def host(rank: int) -> None:
        folder = tmp_path / f"host-{rank}/run"
        memory = Memory(folder, Rank(rank, two))
        files = [File(f"rank.{each}/CKP-1_1.safetensors", length + each, "") for each in (0, 1)]
        manifest = Manifest("CKP-1_1", 1, in_a_row(2), 0, 1, None, 7, None, [], {}, files)
        memory.path_for(manifest, files[rank].path).write_bytes(bytes([rank + 1]) * (length + rank))
        if fault == "a folder" and rank == 1:
            (folder / "0.1/rank.0/CKP-1_1.safetensors.writing").mkdir(parents=True)
        try:
            results[rank] = memory.complete(manifest)
        except ValueError as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=host, args=[rank]) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifests = list(tmp_path.glob("*/run/0.1/CKP-1_1.json"))
    if fault is None:
        assert results == {0: None, 1: None} and len(manifests) == 2
        for rank, foreign in ((0, 1), (1, 0)):
            copy = tmp_path / f"host-{rank}/run/0.1/rank.{foreign}/CKP-1_1.safetensors"
            assert copy.read_bytes() == bytes([foreign + 1]) * (length + foreign)
        return
    assert not manifests
    for text in results.values():
        assert "cannot be written" in text and "make room there, or leave out memory_every. (on rank 1)" in text


@pytest.mark.long
def test_a_job_that_gives_up_leaves_nothing_in_memory(tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text("localhost slots=2\n")
    options = ["--hostfile", listed, "--min-np", 2, "--max-restarts", 3, "--elastic-timeout", 1]
    job = Job(*options, *worlds.arguments(tmp_path, every=(RARE, OFTEN)))
    kept = Kept(job)
    kept.wait_for("CKP-1_*")
    listed.write_text("localhost slots=1\n")
    worlds.kill_rank(job, 1)
    ended = job.wait()
    assert ended.status != 0 and "the job does not go on" in ended.stderr
    assert not kept.left()


@pytest.mark.long
def test_without_a_restart_nothing_is_kept_and_that_is_said(tmp_path):
    ended = run("-np", 2, *worlds.arguments(tmp_path, 1, every=(RARE, OFTEN)), PYTHONWARNINGS="default")
    assert ended.status == 0, ended.stderr
    assert "RankCheckpoint(memory_every=3) keeps nothing in memory" in ended.stderr


def test_what_is_no_generation_is_left_alone(tmp_path):
    for name in ("0.3", "1.4", "a.b", "².1", "0.x", "-1.2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in host_memory.generations(tmp_path, 1)] == ["0.3"]
