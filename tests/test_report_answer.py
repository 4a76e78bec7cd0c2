"""The report's first sentence says what a job was slow for."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from keras_par.agent.rank_process import waited_for_memory
from keras_par.report import answer, run_folder
from tests import run_folders, worlds
from tests.control_group import memory_limit
from tests.launcher import Job, program, run_all
from tests.programs import full_memory

SAYS = {
    "data": "% of the time in fit is input, in which steps wait for their rows",
    "reduce": "% of the time in fit is communication: send less often",
    "rank": "The ranks wait for rank 1: it takes ",
    "callback": "% of the time in fit is callbacks and other Python between steps",
    "start": "% of the time in fit is the start, until the first step has ended",
}


@pytest.mark.long
@pytest.mark.parametrize("reasons", [("data", "rank", "callback"), ("reduce",), ("start",)], ids=" ".join)
def test_what_a_job_is_slow_for(reasons, tmp_path):
    """Those that sleep do so at the same time."""
    size = 1 if reasons == ("start",) else 2  # where two wait for each other
    options = ("-np", size, "--log-dir")
    jobs = run_all({reason: (*options, tmp_path / reason, program("slow_for"), reason) for reason in reasons})
    said = {reason: answer.answer(run_folder.read(tmp_path / reason)) for reason in reasons}
    print(said)
    assert [job.status for job in jobs.values()] == [0] * len(reasons)
    assert [reason for reason in reasons if SAYS[reason] not in said[reason]] == []
    assert "rank" not in reasons or "most of that in callback" in said["rank"]


def test_a_share_is_of_all_ranks_and_attempts(tmp_path):
    run_folders.describe(tmp_path, 2)
    for rank, in_input in enumerate((30.0, 50.0)):
        begin = run_folders.sample(1, 0, (0.0,) * 5)
        first = run_folders.sample(11, 1, (1.0, 1.0, 5.0, 3.0, 1.0))
        end = run_folders.sample(111, 10, (2.0, 1.0 + in_input, 90.0 - in_input, 8.0, 1.0))
        run_folders.write_lines(tmp_path / f"rank.{rank}" / "progress.jsonl", [begin, first, end])
    said = answer.answer(run_folder.read(tmp_path))
    assert said.startswith("40.0\N{NO-BREAK SPACE}% of the time in fit is input")


def test_memory_that_is_full_is_said_first(tmp_path):
    run_folders.describe(tmp_path, 2)
    for rank, waited in enumerate((0.0, 12.0)):
        begin = run_folders.sample(1, 1, (0.0,) * 5, memory_wait=7.0)
        end = run_folders.sample(101, 10, (2.0, 90.0, 6.0, 1.0, 1.0), memory_wait=7.0 + waited)
        run_folders.write_lines(tmp_path / f"rank.{rank}" / "progress.jsonl", [begin, end])
    said = answer.answer(run_folder.read(tmp_path)).replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith("6.0 % of the time processes on the ranks' hosts wait for memory, which is full: hold less")


@pytest.mark.slow
def test_a_job_whose_memory_is_full(tmp_path):
    size = full_memory.NUM_PAGES * full_memory.PAGE
    (tmp_path / "file").write_bytes(np.random.default_rng(1).bytes(size))
    os.sync()
    job = Job("-np", 2, "--log-dir", tmp_path / "job", program("full_memory"), tmp_path)
    with memory_limit(size // 2) as group:
        for rank in range(2):
            job.wait_for(tmp_path / f"ready.{rank}")
        for process in worlds.ranks(job):
            (group / "cgroup.procs").write_text(str(process.pid))
        (tmp_path / "limited").touch()
        assert job.wait().status == 0
    said = answer.answer(run_folder.read(tmp_path / "job"))
    print(said)
    assert "of the time processes on the ranks' hosts wait for memory, which is full" in said


def test_the_kernel_says_how_long_processes_wait_for_memory():
    assert counted() <= waited_for_memory() <= counted()


def counted() -> float:
    path = Path("/proc/pressure/memory")
    return int(re.search(r"some .*total=(\d+)", path.read_text())[1]) / 1e6 if path.exists() else 0.0


WORDS = {
    2: "89.1 % of the time in fit is computing, and nothing else takes more than 9.9 %.",
    1: "89.1 % of the time in fit is steps, of which one process does not tell what is input.",
}


@pytest.mark.parametrize("size", WORDS)
def test_what_computes_most_of_the_time_is_slow_for_nothing_else(size, tmp_path):
    run_folders.describe(tmp_path, size)
    lines = [run_folders.sample(1 + steps, steps, (0.0, 0.0, 0.9 * steps, 0.1 * steps, 0.0)) for steps in (0, 1, 100)]
    for rank in range(size):
        run_folders.write_lines(tmp_path / f"rank.{rank}" / "progress.jsonl", lines)
    assert answer.answer(run_folder.read(tmp_path)).replace("\N{NO-BREAK SPACE}", " ") == WORDS[size]


def test_before_the_first_step_nothing_is_said(tmp_path):
    run_folders.describe(tmp_path, 1)
    assert answer.answer(run_folder.read(tmp_path)) is None
