"""A rank that fails ends the job: all are gone in time, the status is its own, and the last panel says who and why."""

import os
import signal
import time
from pathlib import Path

import pytest

from keras_par.agent.rank_process import num_kills_for_memory
from tests import launcher
from tests.launcher import Job, command_of, of_kind, program, run

GONE_AFTER = 10.0  # seconds from the failure to the end of all ranks
SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("what", "status", "words"),
    [
        ("raise", 1, "Error: subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1."),
        ("exit", 7, "exited with status 7"),
        ("fault", 139, "ended by signal 11 (SIGSEGV)"),
        ("SIGKILL", 137, "ended by signal 9 (SIGKILL)"),
        ("SIGABRT", 134, "ended by signal 6 (SIGABRT)"),
    ],
)
def test_the_rank_that_failed_is_named(what, status, words, size, tmp_path):
    culprit, when, folder = size - 1, tmp_path / "when", tmp_path / "out"
    job = run("-np", size, "--log-dir", folder, program("plain"), what, culprit, when)
    assert job.status == status, job.stderr
    assert job.end - float(when.read_text()) < GONE_AFTER
    assert f"rank {culprit} failed first" in job.last_panel
    assert f"Rank {culprit} on host {os.uname().nodename}" in job.last_panel
    assert words in job.last_panel
    assert f"Its log: {folder}/rank.{culprit}/stderr" in job.last_panel
    [crash] = of_kind(folder, "crash")
    assert crash["rank"] == culprit and words in crash["text"]


def test_the_last_line_of_the_users_own_code_is_shown():
    job = run("-np", 2, program("plain"), "raise", 1)
    assert f"{program('plain')}:" in job.last_panel
    assert 'in fail: subprocess.check_call(["false"])' in job.last_panel


WITHIN = """
import os, signal, sys, time
from pathlib import Path
from keras_par.job import heartbeat
from tests.launcher import rank_of_this_process

beat = heartbeat.current()
with beat.call("fit"):
    beat.begin_epoch(0, 0)
    for _ in range(6):
        beat.begin_step(1)
        beat.end_step({{}})
    if rank_of_this_process() == {culprit}:
        {leave}
    Path(sys.argv[1], f"ready.{{rank_of_this_process()}}").touch()
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("leave", "status"),
    [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGINT)", 130), ("raise KeyboardInterrupt", 130)],
)
def test_a_rank_that_leaves_fit_without_an_error_is_told_with_its_place_and_line(leave, status, tmp_path):
    script = tmp_path / "within.py"
    script.write_text(WITHIN.format(culprit=1, leave=leave))
    job = run("-np", 2, script, tmp_path)
    assert job.status == status
    assert "rank 1 failed first" in job.last_panel and "at step 6 of epoch 1" in job.last_panel
    assert f"Last line of your code: {script}:" in job.last_panel and f"in <module>: {leave}" in job.last_panel


def test_a_job_that_its_user_kills_is_told_with_its_place(tmp_path):
    script = tmp_path / "within.py"
    script.write_text(WITHIN.format(culprit=-1, leave="pass"))
    job = Job("-np", 2, "--log-dir", tmp_path / "out", script, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    job.signal(signal.SIGINT)
    while not of_kind(tmp_path / "out", "interrupt"):
        time.sleep(0.05)
    job.signal(signal.SIGINT)
    ended = job.wait(30)
    assert ended.status == 130
    assert (
        "stopped by SIGINT when a rank was at step 6 of epoch 1;" in ended.stderr
        and "outside of fit" not in ended.stderr
    )


AT_THE_END = """
import sys, time
from pathlib import Path
from keras_par.job import heartbeat
from tests.launcher import rank_of_this_process

beat = heartbeat.current()
with beat.call("fit"):
    beat.begin_epoch(0, 0)
    beat.begin_step(1)
    beat.end_step({})
    Path(sys.argv[1], f"ready.{rank_of_this_process()}").touch()
    time.sleep(2)  # in the last callback
print("went on", flush=True)
time.sleep(20)
"""


def test_ctrl_c_in_the_last_steps_of_a_fit_ends_the_script(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(AT_THE_END)
    job = Job("-np", 2, script, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    job.signal(signal.SIGINT)
    ended = job.wait(15)
    assert ended.status == 130 and "went on" not in ended.stdout
    assert ended.stderr.count("stopped by its user at the end of fit") == 2
    assert "stopped at the end of fit on all ranks, by SIGINT" in ended.stderr


def test_nothing_of_open_mpis_is_left_after_a_failure(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    job = run("-np", 2, program("plain"), "raise", 1, TMPDIR=str(folder))
    assert job.status == 1
    assert not list(folder.glob("ompi.*"))


LATE = """
import os, sys, time
if os.environ.get("OMPI_COMM_WORLD_RANK") == "1" and "keras_par.agent" in sys.orig_argv:
    time.sleep(4)
"""


def test_a_rank_that_is_killed_before_another_has_started_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(LATE)
    script = tmp_path / "killed.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    job = run("-np", 2, script, PYTHONPATH=str(tmp_path))
    assert job.status == 137
    assert "rank 0 failed first" in job.last_panel and "SIGKILL" in job.last_panel


def test_by_gloo():
    job = run("-np", 2, "--engine", "gloo", program("plain"), "exit", 1)
    assert job.status == 7
    assert "rank 1 failed first" in job.last_panel


def test_the_first_of_two_failures_counts(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(
        "import pathlib, sys, time; from tests.launcher import rank_of_this_process as rank\n"
        f"first = pathlib.Path({str(tmp_path / 'first')!r})\n"
        "if rank(): first.touch()\n"
        "while not first.exists(): time.sleep(0.01)\n"
        "time.sleep(0.3 * (1 - rank())); sys.exit(3 + rank())\n"
    )
    job = run("-np", 2, script)
    assert job.status == 4
    assert "rank 1 failed first" in job.last_panel and "Then rank 0 exited with status 3" in job.last_panel


def test_ranks_that_ignore_sigterm_are_killed():
    began = time.time()
    job = run("-np", 2, program("plain"), "stubborn", 0)
    assert job.status == 1
    assert "rank 0 failed first" in job.last_panel
    assert job.end - began < GONE_AFTER + 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("how", "status"), [("fail", 1), ("end", 0)])
def test_children_that_a_script_started_are_gone(how, status, size, tmp_path):
    job = run("-np", size, program("plain"), "children", 1, tmp_path, how)
    assert job.status == status, job.stderr
    assert len(list(tmp_path.glob("ready.*"))) == size


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_nothing_is_left_when_the_launcher_itself_is_killed(engine, tmp_path):
    job = Job("-np", 2, "--engine", engine, program("plain"), "children", 0, tmp_path, "wait")
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    assert len(job.processes()) >= 2 + 2 * 4  # ranks, agents, and three children a rank
    job.signal(signal.SIGKILL)
    job.process.communicate()
    job.require_gone(GONE_AFTER)


def test_an_agent_that_is_killed_is_a_rank_that_vanished(tmp_path):
    job = Job("-np", 2, program("plain"), "children", 0, tmp_path, "wait")
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    agents = [process for process in job.processes() if "keras_par.agent" in command_of(process)]
    agents = [agent for agent in agents if "mpirun" not in command_of(agent)[0]]
    assert len(agents) == 2
    victim = next(agent for agent in agents if agent.environ()["OMPI_COMM_WORLD_RANK"] == "1")
    victim.kill()
    ended = job.wait(leaves_nothing=False)
    job.kill()  # the sleeping children of rank 1, which nobody else could find
    assert ended.status == 1
    assert "Rank 1" in ended.last_panel and "vanished" in ended.last_panel


def test_a_kill_for_want_of_memory_is_told_apart():
    """In a control group of its own, so that the kernel really does it."""
    with memory_limit(400 * 2**20) as group:
        job = Job("-np", 2, program("plain"), "memory", 1)
        (group / "cgroup.procs").write_text(str(job.process.pid))
        before = num_kills_for_memory()
        ended = job.wait()
    assert num_kills_for_memory() > before
    assert ended.status == 137
    assert "Rank 1" in ended.last_panel and "because memory ran out" in ended.last_panel


def test_agents_and_the_launcher_sleep_while_nothing_happens(tmp_path):
    job = Job("-np", 2, program("plain"), "sleep", 0, tmp_path)
    for rank in range(2):
        job.wait_for(tmp_path / f"ready.{rank}")
    watching = [process for process in job.processes() if any("keras_par" in word for word in command_of(process))]
    for _ in range(10):  # they may still have had something to do
        before = {process.pid: sum(process.cpu_times()[:2]) for process in watching}
        time.sleep(2)
        used = {process.pid: sum(process.cpu_times()[:2]) - before[process.pid] for process in watching}
        if max(used.values()) < 0.06:
            break
    job.kill()
    job.process.communicate()
    assert len(used) >= 3 and max(used.values()) < 0.06, used


class memory_limit:  # noqa: N801
    """A control group whose processes may use so many bytes."""

    def __init__(self, num_bytes: int):
        first = Path("/sys/fs/cgroup/memory")
        self._limit = "memory.limit_in_bytes" if first.is_dir() else "memory.max"
        self._group = (first if first.is_dir() else first.parent) / f"kp-test-{os.getpid()}"
        self._num_bytes = num_bytes

    def __enter__(self) -> Path:
        self._group.mkdir()
        (self._group / self._limit).write_text(str(self._num_bytes))
        return self._group

    def __exit__(self, *error) -> None:
        deadline = time.monotonic() + launcher.GONE_SECONDS
        while (self._group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._group.rmdir()
