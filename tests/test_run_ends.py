"""How trainings end that something or somebody ends: what ranks and the launcher say, and what is left of them."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keras_par.agent import wire
from keras_par.agent.states import State
from keras_par.launch.engines import StartedProcess
from keras_par.launch.members import Member, Members
from keras_par.launch.supervisor import Supervisor
from keras_par.launch.switchboard import Switchboard
from tests import jobs
from tests.launcher import Job, program, run

GONE_SECONDS = 4.0
SHARED = Path("/dev/shm")


def test_a_killed_launcher_leaves_no_mpirun_and_no_shared_memory(tmp_path):
    job = Job("-np", 2, program("plain"), "memory of MPI", 0, tmp_path)
    job.wait_until_ready(tmp_path)
    assert any("/mpirun" in process.cmdline()[0] for process in job.processes())
    ranks = [process for process in job.processes() if "KERAS_PAR_WATCH" in process.environ()]
    own = [rank.environ()["PMIX_NAMESPACE"] for rank in ranks]
    session = Path(ranks[0].environ()["OMPI_MCA_orte_jobfam_session_dir"])
    segments = f"vader_segment.*.{int(own[0]):x}.*"
    semaphores = [path.read_text() for path in tmp_path.glob("ready.*")]
    assert len(list(SHARED.glob(segments))) == 2 and session.is_dir()
    assert len(semaphores) == 2 and all((SHARED / f"sem.{name}").exists() for name in semaphores)
    job.signal(signal.SIGKILL)
    job.process.communicate()
    job.require_gone(GONE_SECONDS)
    assert not list(SHARED.glob(segments)) and not session.exists()
    assert not [name for name in semaphores if (SHARED / f"sem.{name}").exists()]


def test_an_engine_that_does_not_end_is_waited_for_until_the_user_is_impatient():
    pressed: list[int] = []
    engine, board = StartedProcess("sleep", ["sleep", "1000"], os.environ, is_one_host=True), Switchboard(is_local=True)
    ended: Any = SimpleNamespace(_engine=engine, _switchboard=board, _members=Members())
    ended._is_pressed = lambda: bool(pressed)
    threading.Timer(0.3, pressed.append, [signal.SIGINT]).start()
    began = time.monotonic()
    Supervisor._see_off(ended, 60)
    assert 0.3 <= time.monotonic() - began < 30 and engine.poll() is None
    engine.kill()
    pressed.clear()
    Supervisor._see_off(ended, 60)
    assert time.monotonic() - began < 60 and engine.poll() == -signal.SIGKILL
    engine.close()
    board.close()


def test_an_agent_that_outlives_what_has_started_it_is_waited_for():
    board = Switchboard(is_local=True)

    def agent():
        invited = json.loads(board.invitation)
        channel = wire.first_to_answer(invited["addresses"], invited["key"])
        channel.send({"hello": 0})
        time.sleep(0.5)
        channel.close()

    thread = threading.Thread(target=agent)
    thread.start()
    while not (heard := list(board.hear(1.0))):
        pass
    began, [(line, _)] = time.monotonic(), heard
    gone: Any = SimpleNamespace(poll=lambda: 0)
    ended: Any = SimpleNamespace(_engine=gone, _switchboard=board, _members=Members({0: Member(line, "a", State(0))}))
    ended._is_pressed = lambda: False
    Supervisor._see_off(ended, 60)
    assert 0.3 < time.monotonic() - began < 30 and not line.is_open
    thread.join()
    board.close()


def test_a_rank_that_leaves_tells_the_others_and_is_named():
    """Rank 0, which keeps the board of failures, leaves as well as another."""
    job = run("-np", 2, program("train"), "none", 1, "leave.0@9")
    assert job.status == 1 and "rank 0 ended before the others" in job.last_panel
    assert "keras-par: rank 0 left the job without an error while this rank went on" in job.last_panel
    assert "without saying why" not in job.stderr


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_leaves_tells_the_others_under_plain_mpirun(rank):
    job = jobs.start("mpirun", 2, program("train"), "none", "1", f"leave.{rank}@9", KERAS_PAR_RESTART_COUNT="0")
    assert job.status != 0
    assert f"keras-par: rank {rank} left the job without an error while this rank went on" in job.output
    assert "without saying why" not in job.output


@pytest.mark.long
def test_an_error_on_all_ranks_is_one_verdict_though_one_is_slow_to_end():
    began = time.monotonic()
    job = run("-np", 2, program("train"), "none", 1, "common@9")
    assert job.status == 1 and time.monotonic() - began < 60
    assert "all ranks failed alike" in job.last_panel
    assert "Error: ValueError: this is the trouble of all" in job.last_panel
    assert job.stderr.count("Traceback") == 1 and "[0] ValueError: this is the trouble of all" in job.stderr
    assert "at step 9 of epoch 1" in job.last_panel and "SIGTERM" not in job.last_panel


@pytest.mark.long
def test_a_loss_that_is_no_number_is_told_with_its_place():
    job = run("-np", 2, program("train"), "none", 1, "nan@9")
    assert job.status == 1
    assert "all ranks failed alike" in job.last_panel
    assert "the loss is not a finite number (epoch: 1 step: 10" in job.last_panel
    assert "at step 10 of epoch 1" in job.last_panel and "outside of fit" not in job.last_panel
