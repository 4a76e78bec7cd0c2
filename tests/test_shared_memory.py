"""Sums through shared memory: exact to the bit, never of another collective, and no rank waits for one that is gone."""

import os
import re
import subprocess
import sys

import pytest

from keras_par.comm import native, segments
from tests import tasks
from tests.launcher import program
from tests.patience import PATIENCE
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


def test_the_library_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_PAR_CACHE", str(tmp_path))
    first = native.library()
    written = first.stat().st_mtime_ns
    assert native.library() == first and first.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [first]
