"""Jobs over hosts that get into trouble: the rank and its host are named in time, and nothing is left on any host.

The hosts are network namespaces with OpenSSH servers of their own, which only root may make.
"""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.hosts import jobs
from tests.launcher import of_kind, program
from tests.patience import comes_to_be, here

pytestmark = pytest.mark.cluster
FIRST, SECOND, THIRD = NAMES = ("kp-fault-0", "kp-fault-1", "kp-fault-2")
ENGINES = ("mpi", "gloo")
NAMED_WITHIN = 20  # seconds from the beginning of a hang
TOGETHER = ("-H", f"{FIRST}:1,{SECOND}:1")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_agent_that_is_killed(engine, hosts_up, job, tmp_path):
    """What started it on its host ends, too, at once, though no agent is left there to see to that."""
    kept = sessions()
    training = job("--engine", engine, *TOGETHER, program("train"), tmp_path / "checkpoints", 500, **jobs.SLOWLY)
    training.wait_for(tmp_path / "checkpoints" / "CKP-1_14.json")
    [agent] = [pid for pid in hosts_up.pids(SECOND) if "-m keras_par.agent " in jobs.command_of(pid)]
    os.kill(agent, signal.SIGKILL)
    ended = training.wait()
    assert ended.status == 1
    assert f"Rank 1 on host {SECOND} vanished together with the agent that watched it" in ended.last_panel
    assert sessions() <= kept


HANGS = [
    ("stop", "mpi"),
    ("loop", "gloo"),
    pytest.param("stop", "gloo", marks=pytest.mark.slow),
    pytest.param("loop", "mpi", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("trouble", "engine"), HANGS)
def test_a_rank_that_hangs_and_is_killed_then(trouble, engine, hosts_up, job, tmp_path):
    out = tmp_path / "out"
    options = ("--engine", engine, "--hang-after", 3, "--log-dir", out, "--tee")
    training = job(*options, *TOGETHER, program("train"), "none", 1, f"{trouble}@9", TROUBLE_SECONDS="300")
    said = {"stop": "is stopped by a signal", "loop": "is in a callback"}[trouble]
    training.wait_for(out / "events.jsonl")
    training.wait_until(lambda: any(said in hang["text"] for hang in of_kind(out, "hang")))
    [rank] = [pid for pid in hosts_up.pids(SECOND) if is_rank(jobs.command_of(pid))]
    killed = time.time()
    os.kill(rank, signal.SIGKILL)
    ended = training.wait()
    [hang] = [hang for hang in of_kind(out, "hang") if said in hang["text"]]  # a busy machine has others, that pass
    assert hang["rank"] == 1
    assert f"; rank 1 is on host {SECOND}" in hang["text"]
    assert 2 < hang["time"] - jobs.began(trouble, ended) < here(NAMED_WITHIN)
    assert ended.status == 137 and "rank 1 failed first" in ended.last_panel
    assert f"Rank 1 on host {SECOND} was ended by signal 9 (SIGKILL), at step 9 of epoch 1" in ended.last_panel
    assert ended.end - killed < here(jobs.ENDED_WITHIN)


def is_rank(command: str) -> bool:
    return program("train") in command and "keras_par.agent" not in command


@pytest.mark.parametrize("engine", ENGINES)
def test_ctrl_c_stops_ranks_on_all_hosts_after_the_same_step(engine, job, tmp_path):
    options = ("--engine", engine, "--log-dir", tmp_path / "out", "--tee", *TOGETHER)
    training = job(*options, program("train"), tmp_path / "checkpoints", 20)
    training.wait_for(tmp_path / "checkpoints" / "CKP-1_14.json")
    training.signal(signal.SIGINT)
    ended = training.wait()
    assert ended.status == 130 and re.search(
        r"stopped after step \d+ of epoch \d+ on all ranks, by SIGINT", ended.stderr
    )


def test_hosts_that_are_lost(hosts_up, job, tmp_path):
    """One's cable is pulled, another's power cut: their launchers name them, and nothing goes on without a job."""
    residents = hosts_up.pids(THIRD)
    jobs_of = {}
    for engine, host in (("mpi", SECOND), ("gloo", THIRD)):
        options = ("--engine", engine, "-H", f"{FIRST}:1,{host}:1", "--log-dir", tmp_path / engine, "--tee")
        jobs_of[host] = job(*options, program("train"), tmp_path / f"of-{engine}", 500, **jobs.SLOWLY)
    for engine, training in zip(ENGINES, jobs_of.values(), strict=True):
        training.wait_for(tmp_path / f"of-{engine}" / "CKP-1_14.json")
    lost = time.monotonic()
    hosts_up.unplug(SECOND)
    hosts_up.lose(THIRD, kept=residents)
    try:
        for host, training in jobs_of.items():
            ended = training.wait(leaves_nothing=False)
            assert ended.status != 0 and f"on host {host} vanished together with the agent" in ended.last_panel
            assert time.monotonic() - lost < 100
        assert comes_to_be(lambda: not any("train.py" in jobs.command_of(pid) for pid in hosts_up.pids(SECOND))), (
            "ranks of the host that was cut off go on"
        )
    finally:
        for host in jobs_of:
            hosts_up.plug(host)


@pytest.mark.parametrize("engine", ENGINES)
def test_hosts_that_do_not_reach_each_other(engine, hosts_up, job, tmp_path):
    """The launcher's own host still reaches both."""
    options = ("--engine", engine, "--log-dir", tmp_path / "out", "--tee", "--hang-after", 5, "--on-hang", "abort")
    listed = ("-H", ",".join(f"{name}:1" for name in NAMES))
    training = job(*options, *listed, program("train"), tmp_path / "checkpoints", 500, **jobs.SLOWLY)
    training.wait_for(tmp_path / "checkpoints" / "CKP-1_14.json")
    parted = time.monotonic()
    hosts_up.part(SECOND, THIRD)
    try:
        ended = training.wait()
        assert ended.status == 124 and time.monotonic() - parted < 40
        [hang] = of_kind(tmp_path / "out", "hang")
        assert "so the connection between them is the reason" in hang["text"]
        assert f"hosts {SECOND} (rank 1) and {THIRD} (rank 2) do not reach each other" in hang["text"]
    finally:
        hosts_up.join(SECOND, THIRD)


def sessions() -> set[Path]:
    """The folders of Open MPI's daemons on the hosts."""
    return {path for name in NAMES for path in Path("/tmp").glob(f"ompi.{name}.*/*")}
