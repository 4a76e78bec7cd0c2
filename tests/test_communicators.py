"""Every communicator keeps one contract, on each engine and through each wrapper, and a broken one is found out."""

import pytest

from tests import communicator_tasks as tasks
from tests.jobs import start

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
SIZES = {"alone": 1, "planned": 4, "group of one": 1}
CASES = [
    *((1, kind) for kind in ("active", "alone", "planned")),
    *((2, kind) for kind in ("active", "engine", "counted", "measured", "counted and measured", "group of all")),
    *((3, kind) for kind in ("active", "engine", "group of one")),
]


@pytest.mark.parametrize(("size", "kind"), CASES)
def test_the_contract_is_kept(kind, size, ranks):
    results = ranks(size).run(tasks.look, kind=kind)
    assert [result["size"] for result in results] == [SIZES.get(kind, size)] * size
    assert [result["breaches"] for result in results] == [[]] * size
    if SIZES.get(kind, size) > 1 and (kind == "engine" or size == 3):  # one of the three wants no shared memory
        assert results[0]["routes"] == ["engine"]
    elif kind == "active" and size > 1:
        assert results[0]["routes"] == ["engine", "shared_memory"]


@pytest.mark.parametrize("kind", ["active", "two levels", "group of half", "measured group of half"])
def test_the_contract_is_kept_in_groups_of_ranks(kind, ranks):
    results = ranks(4).run(tasks.look, kind=kind)
    assert [result["size"] for result in results] == [2 if "group" in kind else 4] * 4
    assert [result["breaches"] for result in results] == [[]] * 4
    in_graphs = "two_levels" if kind == "two levels" else "shared_memory"
    assert [result["routes"] for result in results] == [["engine", in_graphs]] * 4


@pytest.mark.parametrize("launcher", [pytest.param("horovodrun --gloo", marks=pytest.mark.slow), "keras-par run"])
def test_the_contract_is_kept_by_gloo_and_by_ranks_that_are_watched(launcher):
    job = start(launcher, 2, "-m", "tests.programs.communicators")
    assert job.status == 0, job.output
    found = sorted(job.values("contract: "))
    engine = "gloo" if "gloo" in launcher else "mpi"
    assert found == [[rank, 2, engine, "SharedMemoryCommunicator", []] for rank in range(2)], job.output


@pytest.mark.parametrize("breach", tasks.BREACHES)
def test_a_breach_is_found_on_every_rank(breach, ranks):
    first, second = ranks(2).run(tasks.look_at_broken, breach=breach)
    assert first and second
