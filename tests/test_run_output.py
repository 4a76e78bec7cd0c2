"""What a job prints goes where the user wants it, line by line, and a log that cannot be written costs no job."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.launcher import Job, events, of_kind, program, run, run_all
from tests.patience import comes_to_be
from tests.ranks.pool import REPOSITORY, environment


def test_where_output_goes(tmp_path):
    shows, files, both = (program("plain"), "show", 0), tmp_path / "files", tmp_path / "both"
    jobs = {
        "prefixes": ("-np", 3, *shows, "a b"),
        "alone": ("-np", 1, *shows),
        "files": ("-np", 2, "--log-dir", files, *shows),
        "merged": ("-np", 2, "--log-dir", both, "--merge-stderr", "--tee", *shows),
    }
    jobs = run_all(jobs)
    assert {name: job.status for name, job in jobs.items()} == dict.fromkeys(jobs, 0)
    assert sorted(jobs["prefixes"].stdout.splitlines()) == [f"[{rank}] rank {rank} got ['a b']" for rank in range(3)]
    assert {f"[{rank}] rank {rank} on stderr" for rank in range(3)} <= set(jobs["prefixes"].stderr.splitlines())
    assert jobs["alone"].stdout == "rank 0 got []\n"
    # Each rank has files of its own.
    assert jobs["files"].stdout == ""
    for rank in range(2):
        assert (files / f"rank.{rank}/stdout").read_text() == f"rank {rank} got []\n"
        assert (files / f"rank.{rank}/stderr").read_text() == f"rank {rank} on stderr\n"
    about = json.loads((files / "run.json").read_text())
    assert about["num_ranks"] == 2 and about["engine"] == "mpi" and set(about["hosts"]) == {"0", "1"}
    assert [event["event"] for event in events(files)] == ["start", "world", "end"]
    assert of_kind(files, "end")[0]["status"] == 0
    # Streams can be merged, and shown besides.
    assert sorted(os.listdir(both / "rank.1")) == ["progress.jsonl", "stderr", "stdout"]
    assert (both / "rank.1/stderr").read_text() == ""
    assert set((both / "rank.1/stdout").read_text().splitlines()) == {"rank 1 got []", "rank 1 on stderr"}
    assert {"[0] rank 0 got []", "[1] rank 1 on stderr"} <= set(jobs["merged"].stdout.splitlines())
    # An older run is set aside.
    shutil.copytree(files, tmp_path / "files.1")
    run("-np", 1, "--log-dir", files, *shows)
    assert {"files", "files.1", "files.2"} <= set(os.listdir(tmp_path)) and not (files / "rank.1").exists()
    assert (files / "rank.0/stdout").read_text() == "rank 0 got []\n" and (tmp_path / "files.2/rank.1").is_dir()


def test_in_the_background(tmp_path):
    job = Job("-np", 2, "--background", "--log-dir", tmp_path / "out", program("plain"), "sleep", 0, tmp_path)
    ended = job.wait(leaves_nothing=False)  # the ranks would sleep for longer
    assert ended.status == 0
    pid = int(re.search(r"process (\d+)", ended.stdout).group(1))
    assert f"kill -INT {pid}" in ended.stdout and f"{tmp_path}/out/log" in ended.stdout
    are_ready = comes_to_be(lambda: all((tmp_path / f"ready.{rank}").exists() for rank in range(2)))
    assert are_ready, (tmp_path / "out/log").read_text()
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
def test_output_that_nobody_reads_does_not_make_the_launcher_deaf():
    """As in a pager, or after Ctrl-S."""

    def status(seconds: float) -> int:
        reader, writer = os.pipe()
        job = Job("-np", 2, program("plain"), "talk", 0, 1000000, stdout=writer)
        os.close(writer)
        os.read(reader, 10)
        time.sleep(seconds)
        job.signal()
        time.sleep(1)
        job.signal()
        ended = job.wait(20)
        os.close(reader)
        return ended.status

    with ThreadPoolExecutor() as threads:  # agents are not yet, and are, unable to say more
        assert list(threads.map(status, (1, 4))) == [130, 130]


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
