"""SLURM's own daemons on hosts that one machine plays: the page's scripts train, save in time, go on, leave nothing.

The hosts are network namespaces, which only root may make.
"""

import secrets

import pytest

from tests.hosts.jobs import SLOWLY
from tests.hosts.slurm_jobs import PAGE, WEIGHTS, batch, left_in_queue
from tests.launcher import Job, program
from tests.onlookers import onlooker, require_kept
from tests.patience import comes_to_be
from tests.tutorials import follow

pytestmark = pytest.mark.cluster
BY_TENSORFLOW = {"KERAS_PAR_ENGINE": "tensorflow"}
LOGIN, FIRST, SECOND = NAMES = ("login", "worker1", "worker2")


def test_the_page_tells_the_truth(slurm_hosts, shell, tmp_path):
    assert follow(PAGE, tmp_path, slurm_hosts.within(LOGIN)) > 0


@pytest.mark.parametrize(
    ("script", "num_nodes", "chosen"),
    [
        ("srun", 2, {}),
        ("srun", 2, BY_TENSORFLOW),
        *(pytest.param(*each, {}, marks=pytest.mark.slow) for each in (("run", 1), ("run", 2), ("srun", 1))),
        pytest.param("run", 1, BY_TENSORFLOW, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_as_on_one_host(script, num_nodes, chosen, shell, scripts, one_host):
    scripts("train", "none", 1, **chosen)
    expected = one_host(1)
    said, _ = batch(shell, script, f"--nodes={num_nodes} --ntasks-per-node={2 // num_nodes}")
    assert WEIGHTS.findall(said) == expected and len(expected) == 2, said


def test_more_ranks_than_tasks_start_beside_another_step(shell):
    inside = "srun sleep 300 & timeout 250 keras-par run --nproc_per_node 2 hostname"
    said = shell(f"salloc --nodes=2 --ntasks-per-node=1 bash -c '{inside}'")
    shown = sorted(line for line in said.splitlines() if line.startswith("["))
    assert shown == [f"[0] {FIRST}", f"[1] {FIRST}", f"[2] {SECOND}", f"[3] {SECOND}"], said


def test_no_secret_is_shown_on_any_node(slurm_hosts, shell, tmp_path):
    secret, within = secrets.token_hex(16), (*slurm_hosts.within(LOGIN), "salloc", "--nodes=2", "--ntasks-per-node=1")
    with onlooker() as seen:
        arguments = (program("plain"), "hold", 0, tmp_path, "KP_TEST_TOKEN")
        require_kept(Job(*arguments, within=within, KP_TEST_TOKEN=secret), seen, tmp_path, secret, 2)


def test_a_launcher_in_each_task_is_refused(shell, scripts):
    scripts("plain", "show", 0)
    said = shell("srun --nodes=2 --ntasks=2 keras-par run train.py || true")
    assert "srun has started this command 2 times" in said and "rank 0 got" not in said


def test_a_rank_that_fails_is_named_with_its_node(shell, scripts):
    scripts("plain", "raise", 1)
    said, about = batch(shell, "run")
    assert "ExitCode=1:0" in about and "rank 1 failed first" in said, said
    assert f"Rank 1 on host {SECOND} exited with status 1" in said


@pytest.mark.parametrize("script", ["run", "srun", "requeue"])
def test_a_job_that_is_cancelled_leaves_nothing(script, shell, scripts, tmp_path):
    if script == "run":
        scripts("train", tmp_path / "checkpoints", 500, **SLOWLY)
        begun = tmp_path / "checkpoints" / "CKP-1_14.json"
    else:
        scripts("plain", "sleep", 0, tmp_path)
        begun = tmp_path / "ready.0"
    number = shell(f"sbatch --parsable {script}.sbatch").strip()
    wait_for(begun.exists, shell, script)
    shell(f"scancel {number}")
    assert not left_in_queue(shell)
    assert "JobState=CANCELLED" in shell(f"scontrol show job {number}")
    if script == "run":
        said = shell("cat run.log")
        assert "as the ranks got SIGTERM themselves; the newest checkpoint is CKP-1_" in said, said
        assert "failed first" not in said


def wait_for(condition, shell, script) -> None:
    """Returns once the condition holds; fails with the script's log if it does not."""
    assert comes_to_be(condition), shell(f"squeue; cat {script}.log")
