"""Sums over several hosts go in two levels, where hosts have as many ranks; the result is one process's."""

import json

import numpy as np
import pytest

from keras_par.comm.communicator import ENGINES
from keras_par.comm.routes import ranks_by_host
from tests import reduce_by_tasks
from tests.jobs import start
from tests.launcher import program
from tests.ranks.pool import free_port

ROUTES = {  # by the number of ranks on the first host
    2: ("two_levels", "in two levels, through the shared memory of each host and by {engine} between them"),
    3: (
        "engine",
        "by {engine} (reduce_by='auto'; no shared memory, because the ranks are on several hosts)",
    ),
}


@pytest.mark.parametrize(
    ("ranks_of_first", "stages", "engine"),
    [
        pytest.param(2, ("0", "3", "3 all"), "mpi", marks=pytest.mark.long),
        pytest.param(2, ("1",), "mpi", marks=pytest.mark.slow),
        pytest.param(3, ("0", "3 all"), "mpi", marks=pytest.mark.slow),
        pytest.param(2, ("0", "3", "3 all"), "tensorflow", marks=pytest.mark.long),
        pytest.param(3, ("0", "3 all"), "tensorflow", marks=pytest.mark.slow),
    ],
)
def test_hosts_sum_in_two_levels_where_they_have_as_many_ranks(ranks_of_first, stages, engine, plain, tmp_path):
    """With a stage of ZeRO the ranks of a host divide a replica, too."""
    chosen = {"KERAS_PAR_ENGINE": engine, "MASTER_PORT": str(free_port())}
    job = start("mpirun", 4, program("two_hosts"), str(ranks_of_first), str(tmp_path), *stages, **chosen)
    assert job.status == 0, job.output
    ranks = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    [alone] = plain.run(reduce_by_tasks.alone, epochs=2)
    for stage in stages:
        results = [found[stage] for found in ranks]
        assert [result["size"] for result in results] == [4] * 4
        for result in results:
            for own, expected in zip(result["weights"], alone, strict=True):
                np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-7, err_msg=f"stage {stage}")
        if stage == "0":
            route, sentence = ROUTES[ranks_of_first]
            require_route(results, route, sentence.format(engine=ENGINES[engine]))
        elif stage == "3 all":
            require_all_divided(results, ROUTES[ranks_of_first][0])
        else:
            require_divided(results, alone)


def require_route(results: list[dict], route: str, sentence: str) -> None:
    for result in results:
        assert {each for _, each, _, _ in result["sent"]} == {route} and sentence in result["text"]
    assert all(result["weights"] == results[0]["weights"] for result in results)


def require_divided(results: list[dict], alone: list) -> None:
    """Of gradients and weights a host's ranks send each other, between hosts go sums of a rank's part of gradients."""
    for result in results:
        ways = {(kind, route, tuple(ranks)) for kind, route, ranks, _ in result["sent"]}
        assert {kind for kind, route, _ in ways if route == "engine"} == {"all_reduce"}
        assert {ranks for _, route, ranks in ways if route == "engine"} <= {(0, 2), (1, 3)}
        assert {kind for kind, route, _ in ways if route == "shared_memory"} == {"all_gather", "reduce_scatter"}
        assert {ranks for _, route, ranks in ways if route == "shared_memory"} <= {(0, 1), (2, 3)}
    between = [sum(call[3] for call in result["sent"] if call[1] == "engine") for result in results]
    assert sum(between) == 2 * sum(4 * np.size(each) for each in alone)


def require_all_divided(results: list[dict], route: str) -> None:
    for result in results:
        ways = {(kind, way) for kind, way, _, _ in result["sent"] if kind != "all_reduce"}  # of the metrics
        assert ways == {("all_gather", route), ("reduce_scatter", route)}


def test_ranks_are_told_by_their_hosts():
    assert ranks_by_host(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]
