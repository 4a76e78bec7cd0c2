"""Jobs over hosts that are lost and come back: in the end the weights are those of a training that was left alone.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import os
import time
from pathlib import Path

import pytest

from keras_par.base import host_memory
from tests import worlds
from tests.hosts import jobs
from tests.hosts.namespaces import ONLY_ROOT, hosts
from tests.hosts.openssh import NOT_INSTALLED, SERVER, servers
from tests.launcher import of_kind

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason=ONLY_ROOT),
]
FIRST, SECOND, THIRD = NAMES = ("kp-worlds-0", "kp-worlds-1", "kp-worlds-2")
ENGINES = ("mpi", "gloo")
NUM_EPOCHS = 16
AWAY_SECONDS = 10  # longer than ssh tries


@pytest.fixture(scope="module")
def trio():
    """Three hosts with OpenSSH servers."""
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts(*NAMES) as all_three, servers(all_three):
        yield all_three


@pytest.fixture
def residents(trio):
    """What is on the hosts before a job; at the end nothing else may be there."""
    before = jobs.Residents(trio)
    yield before
    left = before.left()
    for name in NAMES:
        trio.end(name, before.of(name))
    assert not left


@pytest.fixture(scope="module")
def undisturbed(trio, tmp_path_factory):
    """The last weights of a rank on each of two hosts."""
    folder = tmp_path_factory.mktemp("undisturbed")
    options = ("-H", f"{FIRST}:1,{SECOND}:1")
    ended = jobs.start(trio, *options, *worlds.arguments(folder, NUM_EPOCHS, checkpoints=False)).wait()
    assert ended.status == 0, ended.stderr
    return worlds.weights(folder)


def lost_until_it_goes_on(job, trio, residents, out: Path):
    """How a job ends whose second host is lost, and is back once the job has gone on without."""
    trio.lose(SECOND, kept=residents.of(SECOND))
    try:
        worlds.wait_until(job, lambda: len(of_kind(out, "resume")) == 1, 90)
    finally:
        trio.plug(SECOND)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    return ended


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_goes_on_without_a_lost_host_and_takes_it_again(engine, trio, residents, undisturbed, tmp_path):
    options = ["--engine", engine, "-H", f"{FIRST}:1,{SECOND}:1", "--min-np", 1, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json", 90)
    ended = lost_until_it_goes_on(job, trio, residents, tmp_path / "out")
    found = of_kind(tmp_path / "out", "world")
    assert [world["num_ranks"] for world in found] == [2, 1, 2], ended.stderr
    assert f"on host {SECOND} vanished together with the agent" in found[0]["why"]
    assert [event["steps_lost"] > 0 for event in of_kind(tmp_path / "out", "resume")] == [True, False]
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE


def test_a_spare_host_takes_a_lost_ones_place(trio, residents, undisturbed, tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text("".join(f"{name} slots=1\n" for name in NAMES))
    options = ["-np", 2, "--max-np", 2, "--hostfile", listed, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json", 90)
    trio.lose(SECOND, kept=residents.of(SECOND))
    try:
        ended = job.wait()
    finally:
        trio.plug(SECOND)
    assert ended.status == 0, ended.stderr
    found = of_kind(tmp_path / "out", "world")
    assert [world["hosts"] for world in found] == [[FIRST, SECOND], [FIRST, THIRD]]
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)


def test_a_host_that_starts_anew_is_waited_for(trio, residents, undisturbed, tmp_path):
    """Where no other may take its place: its processes end, and a moment later nothing answers there for a while."""
    options = ["-H", f"{FIRST}:1,{SECOND}:1", "--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json", 90)
    trio.end(SECOND, residents.of(SECOND))
    time.sleep(0.5)
    trio.unplug(SECOND)
    try:
        worlds.wait_until(job, lambda: of_kind(tmp_path / "out", "restart"))
        time.sleep(AWAY_SECONDS)
    finally:
        trio.plug(SECOND)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert f"waiting for host {SECOND}, which cannot be reached (ssh: connect to host" in ended.stderr
    assert [world["hosts"] for world in of_kind(tmp_path / "out", "world")] == [[FIRST, SECOND]] * 2
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)


def test_ranks_of_a_host_that_was_cut_off_end_when_it_is_back(trio, residents, undisturbed, tmp_path):
    """A pulled cable: its processes live on, and must neither disturb the job nor stay."""
    options = ["-H", f"{FIRST}:1,{SECOND}:1", "--min-np", 1, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json", 90)
    trio.unplug(SECOND)
    try:
        worlds.wait_until(job, lambda: len(of_kind(tmp_path / "out", "resume")) == 1, 90)
    finally:
        trio.plug(SECOND)
    ended = job.wait(leaves_nothing=False)
    assert ended.status == 0, ended.stderr
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE
    assert not residents.left(60)


@pytest.mark.parametrize(("engine", "slots"), [("mpi", 2), ("gloo", 1)])
def test_a_lost_host_costs_few_steps_where_its_partner_keeps_its_state_in_memory(
    engine, slots, trio, residents, undisturbed, tmp_path
):
    """Nothing is on the disk before the loss."""
    options = ["--engine", engine, "-H", f"{FIRST}:{slots},{SECOND}:{slots}", "--min-np", 1, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS, every=(10_000, 3)))
    everybody = [f"rank.{rank}" for rank in range(2 * slots)]
    worlds.wait_until(job, lambda: list(host_memory.SHARED.glob(f"keras-par-*-{FIRST}/*/0.*/CKP-2_*.json")), 90)
    found = [path.parts[-3:] for path in host_memory.SHARED.glob(f"keras-par-*-{FIRST}/*/0.*/*/*.npz")]
    assert any(sorted(rank for each, rank, _ in found if each == one) == everybody for one, _, _ in found)
    ended = lost_until_it_goes_on(job, trio, residents, tmp_path / "out")
    assert [world["num_ranks"] for world in of_kind(tmp_path / "out", "world")] == [2 * slots, slots, 2 * slots]
    first, second = of_kind(tmp_path / "out", "resume")
    assert 0 < first["steps_lost"] <= 6 and second["steps_lost"] == 0
    assert f"checkpoint {first['checkpoint']} was in memory" in ended.stdout
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE
    assert not [path for name in NAMES for path in host_memory.SHARED.glob(f"keras-par-*-{name}")]


def test_a_job_that_gives_up_takes_its_memory_away_on_all_hosts(trio, residents, tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text(f"{FIRST} slots=1\n{SECOND} slots=1\n")
    options = ["--hostfile", listed, "--min-np", 2, "--max-restarts", 1, "--elastic-timeout", 1]
    job = jobs.start(trio, *options, *worlds.arguments(tmp_path, NUM_EPOCHS, every=(10_000, 3)))
    worlds.wait_until(job, lambda: list(host_memory.SHARED.glob(f"keras-par-*-{SECOND}/*/0.*/CKP-1_*.json")), 90)
    listed.write_text(f"{FIRST} slots=1\n")
    worlds.kill_rank(job, 0)
    ended = job.wait()
    assert ended.status != 0 and "the job does not go on" in ended.stderr
    assert not [path for name in NAMES for path in host_memory.SHARED.glob(f"keras-par-*-{name}")]
