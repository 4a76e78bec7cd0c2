"""Sums over several hosts go in two levels, where hosts have as many ranks; the result is one process's."""

import json

import numpy as np
import pytest

from keras_par.comm.ways import ranks_by_host
from tests import reduce_by_tasks
from tests.jobs import start
from tests.launcher import program


@pytest.mark.parametrize(
    ("ranks_of_first", "road", "sentence"),
    [
        pytest.param(
            2,
            "two_levels",
            "in two levels, through the shared memory of each host and by Horovod over MPI between them",
            marks=pytest.mark.long,
        ),
        pytest.param(
            3,
            "horovod",
            "by Horovod over MPI (reduce_by='auto'; no shared memory, because the ranks are on several hosts)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_hosts_sum_in_two_levels_where_they_have_as_many_ranks(ranks_of_first, road, sentence, plain, tmp_path):
    job = start("mpirun", 4, program("two_hosts"), str(ranks_of_first), str(tmp_path))
    assert job.status == 0, job.output
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [result["size"] for result in results] == [4] * 4
    [alone] = plain.run(reduce_by_tasks.alone, epochs=2)
    for result in results:
        assert result["roads"] == [road] and sentence in result["text"]
        for own, expected in zip(result["weights"], alone, strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-7)
    assert all(result["weights"] == results[0]["weights"] for result in results)


@pytest.mark.long
@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_the_ranks_of_a_host_divide_a_replica(stage, plain, tmp_path):
    """Of gradients and weights they send each other, between hosts only sums of a rank's part of gradients go."""
    job = start("mpirun", 4, program("two_hosts"), "2", str(tmp_path), str(stage))
    assert job.status == 0, job.output
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [result["size"] for result in results] == [4] * 4
    [alone] = plain.run(reduce_by_tasks.alone, epochs=2)
    for result in results:
        ways = {(kind, road, tuple(ranks)) for kind, road, ranks, _ in result["sent"]}
        assert {kind for kind, road, _ in ways if road == "horovod"} == {"all_reduce"}
        assert {ranks for _, road, ranks in ways if road == "horovod"} <= {(0, 2), (1, 3)}
        assert {kind for kind, road, _ in ways if road == "shared_memory"} == {"all_gather", "reduce_scatter"}
        assert {ranks for _, road, ranks in ways if road == "shared_memory"} <= {(0, 1), (2, 3)}
        for own, expected in zip(result["weights"], alone, strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-7)
    between = [sum(call[3] for call in result["sent"] if call[1] == "horovod") for result in results]
    assert sum(between) == 2 * sum(4 * np.size(each) for each in alone)


def test_ranks_are_told_by_their_hosts():
    assert ranks_by_host(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]
