"""Jobs whose state is in the memory of two hosts, one of which is lost: few steps are done again, nothing is left.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import pytest

from keras_par.base import host_memory
from tests import worlds
from tests.hosts import jobs
from tests.hosts.losing import NUM_EPOCHS, back_when_it_goes_on
from tests.launcher import of_kind
from tests.present import present

pytestmark = pytest.mark.cluster
FIRST, SECOND = NAMES = ("kp-memory-0", "kp-memory-1")


def in_memory(host, pattern=""):
    return present(host_memory.SHARED, f"keras-par-*-{host}/{pattern}")


def has_whole_checkpoint(host, everybody):
    found = [path.parts[-3:] for path in in_memory(host, "*/0.*/*/*.safetensors")]
    return any(sorted(rank for each, rank, _ in found if each == one) == everybody for one, _, _ in found)


@pytest.mark.parametrize(("engine", "slots"), [("mpi", 2), pytest.param("gloo", 1, marks=pytest.mark.slow)])
def test_a_lost_host_costs_few_steps_where_its_partner_keeps_its_state_in_memory(
    engine, slots, hosts_up, residents, undisturbed, tmp_path
):
    """Nothing is on the disk before the loss."""
    options = ["--engine", engine, "-H", f"{FIRST}:{slots},{SECOND}:{slots}", "--min-np", 1, "--max-restarts", 1]
    options += ["--log-dir", tmp_path / "out", "--tee"]
    job = jobs.start(hosts_up, *options, *worlds.arguments(tmp_path, NUM_EPOCHS, every=(10_000, 3)), **jobs.SLOWLY)
    everybody = [f"rank.{rank}" for rank in range(2 * slots)]
    job.wait_until(lambda: in_memory(FIRST, "*/0.*/CKP-2_*.json"))
    job.wait_until(lambda: has_whole_checkpoint(FIRST, everybody))
    hosts_up.lose(SECOND, kept=residents.of(SECOND))
    ended = back_when_it_goes_on(job, hosts_up, SECOND, tmp_path / "out")
    assert [world["num_ranks"] for world in of_kind(tmp_path / "out", "world")] == [2 * slots, slots, 2 * slots]
    first, second = of_kind(tmp_path / "out", "resume")
    assert 0 < first["steps_lost"] <= 6 and second["steps_lost"] == 0
    assert f"checkpoint {first['checkpoint']} was in memory" in ended.stdout
    assert worlds.distance(worlds.weights(tmp_path), undisturbed) < worlds.TOLERANCE
    assert not [path for name in NAMES for path in in_memory(name)]


def test_a_job_that_gives_up_takes_its_memory_away_on_all_hosts(hosts_up, residents, tmp_path):
    listed = tmp_path / "hosts"
    listed.write_text(f"{FIRST} slots=1\n{SECOND} slots=1\n")
    options = ["--hostfile", listed, "--min-np", 2, "--max-restarts", 1, "--elastic-timeout", 1]
    job = jobs.start(hosts_up, *options, *worlds.arguments(tmp_path, NUM_EPOCHS, every=(10_000, 3)), **jobs.SLOWLY)
    job.wait_until(lambda: in_memory(SECOND, "*/0.*/CKP-1_*.json"))
    listed.write_text(f"{FIRST} slots=1\n")
    worlds.kill_rank(job, 0)
    ended = job.wait()
    assert ended.status != 0 and "the job does not go on" in ended.stderr
    assert not [path for name in NAMES for path in in_memory(name)]
