"""Jobs whose ranks come and go on this host: in the end the weights are those of a training that was left alone."""

import re

import pytest

from tests import worlds
from tests.launcher import Job, events, of_kind


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The last weights of two ranks."""
    return worlds.undisturbed(tmp_path_factory.mktemp("undisturbed"), 2)


@pytest.mark.long
def test_a_world_grows_and_shrinks_as_hosts_come_and_go(undisturbed, tmp_path):
    script, listed = worlds.discovery_script(tmp_path, "localhost:1\n")
    options = ["--host-discovery-script", script, "--max-np", 2, "--log-dir", tmp_path / "out", "--tee"]
    incomplete = tmp_path / "checkpoints/rank.7/CKP-9_9.safetensors"  # of a world that had more ranks
    incomplete.parent.mkdir(parents=True)
    incomplete.touch()
    job = Job(*options, *worlds.arguments(tmp_path))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json")
    assert not incomplete.exists()
    listed.write_text("localhost:3\n")
    job.wait_until(lambda: list(tmp_path.glob("checkpoints/rank.1/*.safetensors")))
    listed.write_text("localhost:1\n")
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert re.findall(r"world of (\d), attempt (\d)", ended.stdout) == [("1", "0"), ("2", "1"), ("2", "1"), ("1", "2")]
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE
    assert not of_kind(tmp_path / "out", "restart") and not of_kind(tmp_path / "out", "crash")
    assert [event["steps_lost"] for event in of_kind(tmp_path / "out", "resume")] == [0, 0]
    found = of_kind(tmp_path / "out", "world")
    assert [world["num_ranks"] for world in found] == [1, 2, 1]
    assert [world["why"] for world in found] == [
        "2 ranks fit now",
        "host localhost has fewer slots now",
        "it finished",
    ]
    [end] = of_kind(tmp_path / "out", "end")
    assert 0 < end["trained_share"] < 1


@pytest.mark.long
def test_a_rank_that_is_killed_is_started_again(undisturbed, tmp_path):
    options = ["-np", 2, "--min-np", 1, "--max-restarts", 1, "--log-dir", tmp_path / "out", "--tee"]
    job = Job(*options, *worlds.arguments(tmp_path))
    job.wait_for(tmp_path / "checkpoints/CKP-1_14.json")
    worlds.kill_rank(job, 1)
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert worlds.are_equal(worlds.weights(tmp_path), undisturbed)
    found = of_kind(tmp_path / "out", "world")
    assert [world["num_ranks"] for world in found] == [2, 2]
    assert "rank 1 on host" in found[0]["why"] and "SIGKILL" in found[0]["why"]
    assert "restart 1 of 1, after status 137" in ended.stderr
    kinds = [event["event"] for event in events(tmp_path / "out")]
    assert [kind for kind in kinds if kind in ("crash", "restart", "resume")] == ["crash", "restart", "resume"]
    [resume] = of_kind(tmp_path / "out", "resume")
    assert 0 < resume["steps_lost"] <= 14 and "CKP-" in resume["text"]
