"""What a job prints goes where the user wants it, line by line, and a log that cannot be written costs no job."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.launcher import Job, events, of_kind, program, run
from tests.ranks.pool import REPOSITORY, environment


def test_lines_carry_their_rank():
    job = run("-np", 3, program("plain"), "show", 0, "a b")
    assert job.status == 0
    assert sorted(job.stdout.splitlines()) == [f"[{rank}] rank {rank} got ['a b']" for rank in range(3)]
    assert {f"[{rank}] rank {rank} on stderr" for rank in range(3)} <= set(job.stderr.splitlines())


def test_one_rank_needs_no_prefix():
    assert run("-np", 1, program("plain"), "show", 0).stdout == "rank 0 got []\n"


def test_each_rank_has_files_of_its_own(tmp_path):
    folder = tmp_path / "log_output"
    job = run("-np", 2, "--log-dir", folder, program("plain"), "show", 0)
    assert (job.status, job.stdout) == (0, "")
    for rank in range(2):
        assert (folder / f"rank.{rank}/stdout").read_text() == f"rank {rank} got []\n"
        assert (folder / f"rank.{rank}/stderr").read_text() == f"rank {rank} on stderr\n"
    about = json.loads((folder / "run.json").read_text())
    assert about["num_ranks"] == 2 and about["engine"] == "mpi" and set(about["hosts"]) == {"0", "1"}
    assert [event["event"] for event in events(folder)] == ["start", "world", "end"]
    assert of_kind(folder, "end")[0]["status"] == 0


def test_streams_can_be_merged_and_shown_besides(tmp_path):
    job = run("-np", 2, "--log-dir", tmp_path / "out", "--merge-stderr", "--tee", program("plain"), "show", 0)
    assert sorted(os.listdir(tmp_path / "out/rank.1")) == ["progress.jsonl", "stderr", "stdout"]
    assert (tmp_path / "out/rank.1/stderr").read_text() == ""
    assert set((tmp_path / "out/rank.1/stdout").read_text().splitlines()) == {"rank 1 got []", "rank 1 on stderr"}
    assert {"[0] rank 0 got []", "[1] rank 1 on stderr"} <= set(job.stdout.splitlines())


def test_an_older_run_is_set_aside(tmp_path):
    folder = tmp_path / "out"
    for _ in range(3):
        run("-np", 1, "--log-dir", folder, program("plain"), "show", 0)
    assert sorted(os.listdir(tmp_path)) == ["out", "out.1", "out.2"]
    assert (folder / "rank.0/stdout").read_text() == "rank 0 got []\n"


def test_in_the_background(tmp_path):
    began = time.monotonic()
    job = Job("-np", 2, "--background", "--log-dir", tmp_path / "out", program("plain"), "sleep", 0, tmp_path)
    ended = job.wait(10, leaves_nothing=False)
    assert ended.status == 0 and time.monotonic() - began < 5
    pid = int(re.search(r"process (\d+)", ended.stdout).group(1))
    assert f"kill -INT {pid}" in ended.stdout and f"{tmp_path}/out/log" in ended.stdout
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"ready.{rank}").exists() for rank in range(2)):
        assert time.monotonic() < deadline, (tmp_path / "out/log").read_text()
        time.sleep(0.1)
    os.kill(pid, signal.SIGINT)
    psutil.Process(pid).wait(20)
    job.require_gone()
    assert "stopping all ranks" in (tmp_path / "out/log").read_text()


def test_much_output_is_complete():
    job = run("-np", 2, program("plain"), "talk", 0, 5000)
    assert job.status == 0
    lines = job.stdout.splitlines()
    for rank in range(2):
        own = [int(line.split()[4]) for line in lines if line.startswith(f"[{rank}] ")]
        assert own == list(range(5000))


@pytest.mark.parametrize("closed", ["before the start", "after a line"])
def test_a_closed_stdout_changes_nothing_but_the_output(closed, tmp_path):
    """`>&-` closes it before; a reader such as head closes it after a while."""
    command = [sys.executable, "-m", "keras_par.launch", "-np", "2", "--log-dir", str(tmp_path / "out"), "--tee"]
    command += [program("plain"), "talk", "0", "2000"]
    shell = f'"$@" {">&-" if closed == "before the start" else "| head -n 1; exit ${PIPESTATUS[0]}"}'
    result = subprocess.run(
        ["bash", "-c", shell, "-", *command], cwd=REPOSITORY, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "Error" not in result.stderr
    for rank in range(2):
        assert len((tmp_path / f"out/rank.{rank}/stdout").read_text().splitlines()) == 2000


def test_a_failure_is_told_with_stdout_closed():
    command = [sys.executable, "-m", "keras_par.launch", "-np", "2", program("plain"), "exit", "1"]
    result = subprocess.run(
        ["bash", "-c", '"$@" >&-', "-", *command], cwd=REPOSITORY, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 7 and "rank 1 failed first" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("seconds", [1, 4])  # in which agents are not yet, and are, unable to say more
def test_output_that_nobody_reads_does_not_make_the_launcher_deaf(seconds, tmp_path):
    """As in a pager, or after Ctrl-S."""
    reader, writer = os.pipe()
    job = Job("-np", 2, program("plain"), "talk", 0, 1000000, stdout=writer)
    os.close(writer)
    os.read(reader, 10)
    time.sleep(seconds)
    job.signal()
    time.sleep(1)
    job.signal()
    assert job.wait(15).status == 130
    os.close(reader)


def test_nohup_is_respected(tmp_path):
    arguments = ["-np", 1, program("plain"), "sleep", 0, tmp_path]
    job = Job(*arguments, before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    job.wait_for(tmp_path / "ready.0")
    job.signal(signal.SIGHUP)
    time.sleep(1)
    assert job.process.poll() is None
    job.signal(signal.SIGINT)
    assert job.wait(20).status == 130


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_the_log_and_not_the_job(small_disk):
    job = run("-np", 2, "--log-dir", small_disk / "out", program("plain"), "talk", 0, 1000)
    assert job.status == 0, job.stderr
    for rank in range(2):
        warnings = re.findall(
            rf"rank {rank}: '.*/rank.{rank}/stdout' cannot be written any more \(No space", job.stderr
        )
        assert len(warnings) == 1
        written = (small_disk / f"out/rank.{rank}/stdout").read_bytes()
        shown = [line.removeprefix(f"[{rank}] ") for line in job.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert shown, "what the log could not take must be shown"
        numbers = [int(line.split()[3]) for line in written.decode().splitlines() if line.endswith("x" * 1000)]
        numbers += [int(line.split()[3]) for line in shown]
        assert set(numbers) == set(range(1000))


def test_a_failure_is_told_with_a_full_disk(small_disk):
    Path(small_disk, "rest").write_bytes(b"x" * 290_000)
    job = run("-np", 2, "--log-dir", small_disk / "out", program("plain"), "exit", 1)
    assert job.status == 7
    assert "rank 1 failed first" in job.last_panel
