"""A rank that fails ends the job: all are gone in time, the status is its own, and the last panel says who and why."""

import os
import re
import signal
import time

import pytest

from keras_par.agent.rank_process import num_kills_for_memory
from tests import worlds
from tests.control_group import memory_limit
from tests.launcher import Job, command_of, of_kind, program, run, run_all

SLEEPS = ("-np", 2, program("plain"), "sleep", 0)
GONE_AFTER = 10.0  # seconds from the failure to the end of all ranks
FALSE = "Error: subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1."
# What the last rank does: the job's status, and what its last panel says.
CRASHES = {
    "raise": (1, FALSE, f"{program('plain')}:", 'in fail: subprocess.check_call(["false"])'),
    "exit": (7, "exited with status 7"),
    "exit over gloo": (7, "exited with status 7"),
    "fault": (139, "ended by signal 11 (SIGSEGV)"),
    "SIGKILL": (137, "ended by signal 9 (SIGKILL)", "Somebody sent SIGKILL, a scheduler maybe; memory did not run out"),
    "SIGABRT": (134, "ended by signal 6 (SIGABRT)"),
    "stubborn": (1, FALSE),  # the others ignore SIGTERM
}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_rank_that_failed_is_named(size, tmp_path):
    culprit, commands = size - 1, {}
    for name in CRASHES:
        options = ["-np", size, "--log-dir", tmp_path / name, "--engine", "gloo" if "gloo" in name else "mpi"]
        commands[name] = [*options, program("plain"), name.split()[0], culprit, tmp_path / f"{name}.when"]
    for name, job in run_all(commands, TMPDIR=str(tmp_path)).items():
        status, *words = CRASHES[name]
        assert job.status == status, (name, job.stderr)
        assert job.end - float((tmp_path / f"{name}.when").read_text()) < GONE_AFTER, name
        words += [f"rank {culprit} failed first", f"Rank {culprit} on host {os.uname().nodename}"]
        for said in (*words, f"Its log: {tmp_path / name}/rank.{culprit}/stderr"):
            assert said in job.last_panel, name
        [crash] = of_kind(tmp_path / name, "crash")
        assert crash["rank"] == culprit and words[0] in crash["text"], name
    assert not list(tmp_path.glob("ompi.*")), "files of Open MPI's are left"


WITHIN = """
import ctypes, os, signal, sys, time
from pathlib import Path
from keras_par.job import rank_heartbeat
from tests.launcher import rank_of_this_process

heartbeat = rank_heartbeat.current()
with heartbeat.call("fit"):
    heartbeat.begin_epoch(0, 0)
    for _ in range(6):
        heartbeat.begin_step(1)
        heartbeat.end_step({{}})
    if rank_of_this_process() == {culprit}:
        {leave}
    Path(sys.argv[1], f"ready.{{rank_of_this_process()}}").touch()
    time.sleep(1000)
"""


LEAVES = {"sys.exit(3)": 3, "os.kill(os.getpid(), signal.SIGINT)": 130, "raise KeyboardInterrupt": 130}
LEAVES |= {"os.kill(os.getpid(), signal.SIGKILL)": 137, "ctypes.string_at(0)": 139}


def test_a_rank_that_leaves_fit_without_an_error_is_told_with_its_place_and_line(tmp_path):
    commands = {}
    for number, leave in enumerate(LEAVES):
        script = tmp_path / f"within_{number}.py"
        script.write_text(WITHIN.format(culprit=1, leave=leave))
        commands[leave] = ("-np", 2, script, tmp_path)
    for leave, job in run_all(commands).items():
        assert job.status == LEAVES[leave], (leave, job.stderr)
        assert "rank 1 failed first" in job.last_panel and "at step 6 of epoch 1" in job.last_panel, leave
        if leave == "ctypes.string_at(0)":
            assert re.search(r"within_\d\.py:\d+ in <module>", job.last_panel)
        elif "SIGKILL" not in leave:  # which leaves no time to say so
            assert f"Last line of your code: {commands[leave][2]}:" in job.last_panel, leave
            assert f"in <module>: {leave}" in job.last_panel


def test_a_job_that_its_user_kills_is_told_with_its_place(tmp_path):
    script = tmp_path / "within.py"
    script.write_text(WITHIN.format(culprit=-1, leave="pass"))
    job = Job("-np", 2, "--log-dir", tmp_path / "out", script, tmp_path)
    job.wait_until_ready(tmp_path)
    job.signal(signal.SIGINT)
    job.wait_until(lambda: of_kind(tmp_path / "out", "interrupt"))
    job.signal(signal.SIGINT)
    ended = job.wait(30)
    assert ended.status == 130 and "outside of fit" not in ended.stderr
    assert "stopped by SIGINT when a rank was at step 6 of epoch 1;" in ended.stderr


AT_THE_END = """
import sys, time
from pathlib import Path
from keras_par.job import rank_heartbeat
from tests.launcher import rank_of_this_process

heartbeat = rank_heartbeat.current()
with heartbeat.call("fit"):
    heartbeat.begin_epoch(0, 0)
    heartbeat.begin_step(1)
    heartbeat.end_step({})
    Path(sys.argv[1], f"ready.{rank_of_this_process()}").touch()
    time.sleep(2)  # in the last callback
print("went on", flush=True)
time.sleep(20)
"""


def test_ctrl_c_in_the_last_steps_of_a_fit_ends_the_script(tmp_path):
    script = tmp_path / "ends.py"
    script.write_text(AT_THE_END)
    job = Job("-np", 2, script, tmp_path)
    job.wait_until_ready(tmp_path)
    job.signal(signal.SIGINT)
    ended = job.wait(15)
    assert ended.status == 130 and "went on" not in ended.stdout
    assert ended.stderr.count("stopped by its user at the end of fit") == 2
    assert "stopped at the end of fit on all ranks, by SIGINT" in ended.stderr


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


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_children_that_a_script_started_are_gone(size, tmp_path):
    ends = {"fail": 1, "end": 0}
    for how in ends:
        (tmp_path / how).mkdir()
    jobs = run_all({how: ("-np", size, program("plain"), "children", 1, tmp_path / how, how) for how in ends})
    for how, job in jobs.items():
        assert job.status == ends[how] and len(list(tmp_path.glob(f"{how}/ready.*"))) == size, (how, job.stderr)


@pytest.mark.parametrize("engine", ["mpi", "gloo"])
def test_nothing_is_left_when_the_launcher_itself_is_killed(engine, tmp_path):
    job = Job("-np", 2, "--engine", engine, program("plain"), "children", 0, tmp_path, "wait")
    job.wait_until_ready(tmp_path)
    assert len(job.processes()) >= 2 + 2 * 4  # ranks, agents, and three children a rank
    job.signal(signal.SIGKILL)
    job.process.communicate()
    job.require_gone(GONE_AFTER)


def test_an_agent_that_is_killed_is_a_rank_that_vanished(tmp_path):
    job = Job("-np", 2, program("plain"), "children", 0, tmp_path, "wait")
    job.wait_until_ready(tmp_path)
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
    with memory_limit(250 * 2**20) as group:
        job = Job("-np", 2, program("plain"), "memory", 1)
        (group / "cgroup.procs").write_text(str(job.process.pid))
        before = num_kills_for_memory()
        ended = job.wait()
    assert num_kills_for_memory() > before
    assert ended.status == 137
    assert "Rank 1" in ended.last_panel and "because memory ran out" in ended.last_panel


def test_agents_and_the_launcher_sleep_while_nothing_happens_also_under_nohup(tmp_path):
    """SIGHUP is ignored; one SIGTERM ends a job outside of fit."""
    job = Job(*SLEEPS, tmp_path, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.wait_until_ready(tmp_path)
    job.signal(signal.SIGHUP)
    watching = [process for process in job.processes() if any("keras_par" in word for word in command_of(process))]
    for _ in range(10):  # they may still have had something to do
        before = {process.pid: sum(process.cpu_times()[:2]) for process in watching}
        time.sleep(2)
        used = {process.pid: sum(process.cpu_times()[:2]) - before[process.pid] for process in watching}
        if max(used.values()) < 0.06:
            break
    assert len(used) >= 3 and max(used.values()) < 0.06, used
    assert job.process.poll() is None
    job.signal(signal.SIGTERM)
    ended = job.wait(20)
    assert ended.status == 143 and ended.stderr.count("KeyboardInterrupt") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_come_until_the_launcher_is_gone_leave_its_status(number, tmp_path):
    job = Job(*SLEEPS, tmp_path)
    job.wait_until_ready(tmp_path)
    while job.process.poll() is None:
        job.signal(number)
        time.sleep(0.002)
    ended = job.wait()
    assert ended.status == 128 + number and ended.stderr.splitlines()[-1].startswith("keras-par: ")


def test_ranks_that_get_the_launchers_signal_themselves_have_not_failed(tmp_path):
    """As SLURM's `scancel` sends it, to all processes of a job."""
    job = Job(*SLEEPS, tmp_path)
    job.wait_until_ready(tmp_path)
    ranks = worlds.ranks(job)
    assert len(ranks) == 2
    job.signal(signal.SIGTERM)
    for rank in ranks:
        rank.terminate()
    ended = job.wait(20)
    assert ended.status == 143 and not ended.panels
    assert ended.stderr.splitlines()[-1] == (
        "keras-par: stopped where each rank was, as the ranks got SIGTERM themselves; no checkpoint was written"
    )
