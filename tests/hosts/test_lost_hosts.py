"""Jobs over hosts that are lost and come back: in the end the weights are those of a training that was left alone.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import time

import pytest

from tests import worlds
from tests.hosts import jobs
from tests.hosts.losing import ENDED_SECONDS, NUM_EPOCHS, back_when_it_goes_on
from tests.launcher import of_kind

pytestmark = pytest.mark.cluster
FIRST, SECOND, THIRD = NAMES = ("kp-worlds-0", "kp-worlds-1", "kp-worlds-2")
AWAY_SECONDS = 10  # longer than ssh tries


def test_a_spare_host_takes_a_lost_ones_place(hosts_up, residents, undisturbed, tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text("".join(f"{name} slots=1\n" for name in NAMES))
    options = ["-np", 2, "--max-np", 2, "--hostfile", listed, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(hosts_up, *options, *worlds.arguments(tmp_path, NUM_EPOCHS), **jobs.SLOWLY)
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json")
    hosts_up.lose(SECOND, kept=residents.of(SECOND))
    try:
        ended = job.wait(ENDED_SECONDS)
    finally:
        hosts_up.plug(SECOND)
    assert ended.status == 0, ended.stderr
    found = of_kind(tmp_path / "out", "world")
    assert [world["hosts"] for world in found] == [[FIRST, SECOND], [FIRST, THIRD]]
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)


def test_a_host_that_starts_anew_is_waited_for(hosts_up, residents, undisturbed, tmp_path):
    """Where no other may take its place: its processes end, and a moment later nothing answers there for a while."""
    options = ["-H", f"{FIRST}:1,{SECOND}:1", "--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(hosts_up, *options, *worlds.arguments(tmp_path, NUM_EPOCHS), **jobs.SLOWLY)
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json")
    hosts_up.end(SECOND, residents.of(SECOND))
    time.sleep(0.5)
    hosts_up.unplug(SECOND)
    try:
        job.wait_until(lambda: of_kind(tmp_path / "out", "restart"))
        time.sleep(AWAY_SECONDS)
    finally:
        hosts_up.plug(SECOND)
    ended = job.wait(ENDED_SECONDS)
    assert ended.status == 0, ended.stderr
    assert f"waiting for host {SECOND}, which cannot be reached (ssh: connect to host" in ended.stderr
    assert [world["hosts"] for world in of_kind(tmp_path / "out", "world")] == [[FIRST, SECOND]] * 2
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)


@pytest.mark.parametrize("engine", [pytest.param("mpi", marks=pytest.mark.slow), "gloo"])
def test_a_job_goes_on_without_a_host_that_was_cut_off_and_takes_it_again(
    engine, hosts_up, residents, undisturbed, tmp_path
):
    """A pulled cable: its processes live on, and must neither disturb the job nor stay."""
    options = ["--engine", engine, "-H", f"{FIRST}:1,{SECOND}:1", "--min-np", 1, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(hosts_up, *options, *worlds.arguments(tmp_path, NUM_EPOCHS), **jobs.SLOWLY)
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json")
    hosts_up.unplug(SECOND)
    ended = back_when_it_goes_on(job, hosts_up, SECOND, tmp_path / "out")
    found = of_kind(tmp_path / "out", "world")
    assert [world["num_ranks"] for world in found] == [2, 1, 2], ended.stderr
    assert f"on host {SECOND} vanished together with the agent" in found[0]["why"]
    assert [event["steps_lost"] > 0 for event in of_kind(tmp_path / "out", "resume")] == [True, False]
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE
    assert not residents.left(60)
