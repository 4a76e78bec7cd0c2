"""SLURM's own daemons on hosts that one machine plays: the page's scripts train, save in time, go on, leave nothing.

The hosts are network namespaces, which only root may make.
"""

import os
import re
import secrets

import pytest

from tests.hosts import slurm
from tests.hosts.jobs import SLOWLY, Residents
from tests.hosts.namespaces import hosts
from tests.launcher import Job, program
from tests.launcher import run as run_here
from tests.onlookers import onlooker, require_kept
from tests.patience import PATIENCE, comes_to_be
from tests.ranks.pool import REPOSITORY
from tests.tutorials import File, follow, run, steps_of, write

pytestmark = pytest.mark.cluster
LOGIN, FIRST, SECOND = NAMES = ("login", "worker1", "worker2")
PAGE = (REPOSITORY / "docs/clusters/slurm.md").read_text()
WEIGHTS = re.compile(r"weights (\w+)")
JOB_SECONDS = 600  # on a busy machine a job's time may be up twice


@pytest.fixture(scope="module")
def hosts_up():
    """A host with SLURM's controller and two with a node each."""
    assert all(map(os.path.exists, slurm.PROGRAMS)), slurm.NOT_INSTALLED
    with hosts(*NAMES) as made, slurm.cluster(made):
        yield made


@pytest.fixture
def shell(hosts_up, tmp_path):
    """A function that gives what a command prints on the first host; at the end no job and no process may be left."""
    before = Residents(hosts_up)

    def said(line: str) -> str:
        return run(line, tmp_path, hosts_up.within(LOGIN))

    yield said
    jobs = left_in_queue(said)
    said("scancel --user=root")
    left = before.left()
    for name in NAMES:
        hosts_up.end(name, before.of(name))
    assert not jobs and not left, (jobs, left)


@pytest.fixture
def scripts(tmp_path):
    """A function that puts the page's batch scripts there, with one of the tests' programs for the page's.

    It takes the program's name, its arguments and variables.
    """

    def put(name: str, *arguments, **variables: str) -> None:
        for step in steps_of(PAGE):
            if isinstance(step, File):
                write(step, tmp_path / step.name)
        given = [program(name), *map(str, arguments)]
        text = f"import os, runpy, sys\nos.environ |= {variables}\nsys.argv = {given}\n"
        text += "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        (tmp_path / "train.py").write_text(text)

    return put


@pytest.fixture(scope="module")
def one_host():
    """A function that says what ranks' last weights are where both are on this host."""
    known = {}

    def weights_of(num_epochs):
        if num_epochs not in known:
            ended = run_here("-np", 2, program("train"), "none", num_epochs, PAUSE="0")
            assert ended.status == 0, ended.stderr
            known[num_epochs] = WEIGHTS.findall(ended.stdout)
        return known[num_epochs]

    return weights_of


def test_the_page_tells_the_truth(hosts_up, shell, tmp_path):
    assert follow(PAGE, tmp_path, hosts_up.within(LOGIN)) > 0


@pytest.mark.parametrize(
    ("script", "num_nodes"),
    [("srun", 2), *(pytest.param(*each, marks=pytest.mark.slow) for each in (("run", 1), ("run", 2), ("srun", 1)))],
)
def test_ranks_train_as_on_one_host(script, num_nodes, shell, scripts, one_host):
    scripts("train", "none", 1)
    expected = one_host(1)
    said, _ = batch(shell, script, f"--nodes={num_nodes} --ntasks-per-node={2 // num_nodes}")
    assert WEIGHTS.findall(said) == expected and len(expected) == 2, said


def test_more_ranks_than_tasks_start_beside_another_step(shell):
    inside = "srun sleep 300 & timeout 250 keras-par run --nproc_per_node 2 hostname"
    said = shell(f"salloc --nodes=2 --ntasks-per-node=1 bash -c '{inside}'")
    shown = sorted(line for line in said.splitlines() if line.startswith("["))
    assert shown == [f"[0] {FIRST}", f"[1] {FIRST}", f"[2] {SECOND}", f"[3] {SECOND}"], said


def test_no_secret_is_shown_on_any_node(hosts_up, shell, tmp_path):
    secret, within = secrets.token_hex(16), (*hosts_up.within(LOGIN), "salloc", "--nodes=2", "--ntasks-per-node=1")
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


def test_a_job_whose_time_is_up_goes_on(shell, scripts, one_host, tmp_path):
    """Of a limit of three minutes SLURM warns after half a minute to one and a half, in which it cannot be done."""
    scripts("train", tmp_path / "checkpoints", 12, PAUSE="0.2")
    expected = one_host(12)
    said, about = batch(shell, "requeue", "--time=3")
    assert re.search(r"stopped after step \d+ of epoch \d+ on all ranks, by SIGTERM", said), said
    assert re.search(r"Restarts=[1-9]", about), about + said
    # SLURM may warn the job again when it has said its weights, and is about to end: it says them again then.
    assert WEIGHTS.findall(said) in (expected, 2 * expected), said


def batch(shell, script, options="") -> tuple[str, str]:
    """What a batch script of the page has logged in the end, and what SLURM says about its job."""
    number = shell(f"sbatch --parsable {options} {script}.sbatch").strip()
    left = left_in_queue(shell, JOB_SECONDS)
    said = shell(f"cat {script}.log")
    assert not left, left + said
    return said, shell(f"scontrol show job {number}")


def left_in_queue(shell, seconds: float = PATIENCE) -> str:
    """The jobs that are there yet after so many seconds."""
    comes_to_be(lambda: not shell("squeue --noheader"), seconds)
    return shell("squeue --noheader")


def wait_for(condition, shell, script) -> None:
    """Returns once the condition holds; fails with the script's log if it does not."""
    assert comes_to_be(condition), shell(f"squeue; cat {script}.log")
