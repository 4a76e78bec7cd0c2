"""Sums through shared memory: exact to the bit, never of another collective, and no rank waits for one that is gone."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_par.comm import native, segments
from tests import tasks
from tests.launcher import Job, program
from tests.launcher import run as launch
from tests.patience import PATIENCE, comes_to_be
from tests.ranks.pool import environment

SIZE = 3


def run(ending: str, size: int = SIZE, **variables: str) -> list[tuple[int, str]]:
    """The status and the output of each rank of a group that ends in some way."""

    processes: list[subprocess.Popen] = []

    def start(*arguments) -> None:
        command = [sys.executable, program("shared_sum"), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        processes.append(subprocess.Popen(command, env=environment() | variables, text=True, **pipes))

    def say(process: subprocess.Popen, line: str) -> None:
        process.stdin.write(line)
        process.stdin.flush()

    try:
        start(0, size, ending)
        offer = processes[0].stdout.readline()
        for rank in range(1, size):
            start(rank, size, ending, offer)
        for process in processes[1:]:
            assert process.stdout.readline() == "joined\n"
        say(processes[0], "all have come\n")
        assert processes[0].stdout.readline() == "joined\n"
        for process in processes:
            say(process, "begin\n")
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.long
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow), 5])  # five add up a part each
def test_collectives_are_exact_and_ranks_in_different_ones_are_told(size):
    results = run("another", size)
    told = r"rank \d is in test\.(sum, but rank \d in test\.another|another, but rank \d in test\.sum)"
    assert any(re.search(told, output) for _, output in results), results
    for status, output in results:
        assert status == 0 and output.startswith("equal\n"), output
        assert re.search(rf"{told}|has left the job", output), output
        assert "keras-par's shared memory: communication has been shut down" in output, output


@pytest.mark.long
def test_processors_without_instructions_for_halves_are_exact_too(tmp_path):
    for status, output in run("another", 2, CXX="c++ -mno-f16c", KERAS_PAR_CACHE=str(tmp_path)):
        assert status == 0 and output.startswith("equal\n"), output
    [library] = tmp_path.glob("*.so")
    assert library.name != native.library().name


@pytest.mark.long
def test_tensors_of_as_many_bytes_and_another_shape_are_never_added():
    results = run("shape")
    told = r"rank \d is in test\.sum, but rank \d in it with tensors of other shapes"
    assert any(re.search(told, output) for _, output in results), results
    for status, output in results:
        assert status == 0 and re.search(rf"{told}|has left the job", output), output


@pytest.mark.parametrize(
    ("size", "kinds"),
    [(2, ["KerasParSharedAllGather"]), (3, ["HorovodAllgather"] * 5), (4, ["KerasParSharedAllGather"])],
)
def test_gathers_are_those_of_horovod_to_the_bit(size, kinds, ranks):
    for result in ranks(size).run(tasks.gathers):
        assert result["size"] == size and result["kinds"] == kinds
        assert all(all(each) for each in result["equal"]) and len(result["equal"]) == 3
        assert all(result["dtypes"])


def test_sums_in_several_functions_keep_their_order_and_have_gradients(ranks):
    for result in ranks(2).run(tasks.sums_in_functions):
        assert result["waits"] == [True]
        assert result["value"] == 2 * 3.0 + 2 * 2.0
        assert result["gradient"] == 2 * 2 * 1.0  # the sum of both ranks' 2 (0 + 1)


@pytest.mark.parametrize("offered", ["missing", "pipe", "other"])
def test_a_rank_that_cannot_reach_the_memory_says_so(offered, tmp_path):
    path = tmp_path / offered
    if offered == "pipe":
        os.mkfifo(path)
    elif offered == "other":
        path.write_bytes(b"something else altogether")
    with pytest.raises(OSError):
        segments.opened(str(path), b"0123456789abcdef")


@pytest.mark.long
def test_nobody_waits_for_a_rank_that_died():
    *others, (status, output) = run("die")
    assert status == -9 and output.endswith("equal\n"), output
    assert any(f"rank {SIZE - 1} has left the job" in output for _, output in others), others
    for status, output in others:
        assert status == 0 and "has left the job" in output, output
        [seconds] = re.findall(r"after ([\d.]+) s: ", output)
        assert float(seconds) < 5


def test_one_rank_that_does_without_makes_all_do_without(ranks):
    assert ranks(2).run(tasks.kinds_of_sums) == [["KerasParSharedAllReduce"]] * 2
    assert ranks(3).run(tasks.kinds_of_sums) == [["HorovodAllreduce"]] * 3  # as its last rank wants


def test_without_a_compiler_there_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"operations\.cc cannot be compiled into .*no-such-compiler"):
        native.library()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match=r"compiling operations\.cc failed"):
        native.library()
    assert list(tmp_path.iterdir()) == []


def test_all_pools_share_memory_but_those_of_three_ranks(ranks, ranks_of_tensorflow):
    for pool in (ranks(2), ranks(4), ranks_of_tensorflow(2)):
        assert pool.run(tasks.kinds_of_sums) == [["KerasParSharedAllReduce"]] * pool.size


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A function that makes the compiler do something once a file `go` is there; `calls` has a line for each call."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of processes that are begun

    def does(what: str) -> Path:
        wait = f"echo $PPID >> {tmp_path}/calls; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
        (tmp_path / "c++").write_text(f"#!/bin/sh\n{wait}\n{what}\n")
        (tmp_path / "c++").chmod(0o755)
        return tmp_path

    yield does
    (tmp_path / "go").touch()


def calls(folder: Path) -> list[int]:
    """The processes that have called the compiler."""
    return list(map(int, (folder / "calls").read_text().split())) if (folder / "calls").exists() else []


def test_a_job_never_waits_for_the_compiler_which_runs_once(compiler):
    folder = compiler('while [ "$1" != -o ]; do shift; done; echo compiled > "$2"')
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is not compiled yet"):
            native.compiled()
    assert comes_to_be(lambda: calls(folder), PATIENCE)
    [log] = (folder / "cache").iterdir()
    os.kill(calls(folder)[0], signal.SIGKILL)
    assert comes_to_be(lambda: begun_again(folder), PATIENCE)
    assert list((folder / "cache").iterdir()) == [log] and log.read_text() == ""
    (folder / "go").touch()
    assert comes_to_be(lambda: not log.exists(), PATIENCE)
    assert native.compiled().read_text() == "compiled\n" and len(calls(folder)) == 2
    assert list((folder / "cache").iterdir()) == [native.compiled()]


def begun_again(folder: Path) -> bool:
    """True once another process has called the compiler, which a job begins as soon as the first is gone."""
    with pytest.raises(RuntimeError, match="is not compiled yet"):
        native.compiled()
    return len(calls(folder)) == 2


def test_why_it_did_not_compile_is_said_by_the_next_job(compiler):
    folder = compiler("echo some.h:1: error: no such thing >&2; exit 1")
    (folder / "go").touch()
    with pytest.raises(RuntimeError, match="is not compiled yet"):
        native.compiled()
    [log] = (folder / "cache").iterdir()
    assert comes_to_be(log.read_text, PATIENCE)
    with pytest.raises(RuntimeError, match=r"compiling operations\.cc failed: some\.h:1: error: no such thing"):
        native.compiled()


def test_where_nothing_can_be_compiled_nothing_is_begun(compiler, monkeypatch):
    folder = compiler("exit 1")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"cannot be compiled into .*no-such-compiler"):
        native.compiled()
    monkeypatch.setenv("CXX", str(folder / "c++"))
    monkeypatch.setenv("KERAS_PAR_CACHE", "/proc/no/folder")
    with pytest.raises(RuntimeError, match=r"operations\.cc cannot be compiled into /proc/no/folder"):
        native.compiled()
    assert not calls(folder) and not list((folder / "cache").iterdir())


@pytest.mark.long
def test_the_first_job_sums_by_the_engine_and_the_next_one_shares_memory(compiler):
    folder = compiler('exec c++ "$@"')
    first = Job("-np", 2, program("fit_losses")).wait(leaves_nothing=False)
    assert first.status == 0 and "not through shared memory, because the library for it is not" in first.stderr
    (folder / "go").touch()  # the compiler has outlived the job
    assert comes_to_be(lambda: list((folder / "cache").glob("*.so")), PATIENCE)
    second = launch("-np", 2, program("fit_losses"))
    assert second.status == 0 and "through the shared memory of this host" in second.stderr
    assert len(calls(folder)) == 1
    found = [re.findall(r"losses: \[(\d), 2, (.*)\]", job.stdout) for job in (first, second)]
    assert len(found[0]) == 2 and sorted(found[0]) == sorted(found[1])


def test_the_library_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path))
    first = native.library()
    written = first.stat().st_mtime_ns
    assert native.library() == first and first.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [first]
