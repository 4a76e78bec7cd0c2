"""Losses across the batch end on N ranks where they end in one process, by collectives with exact gradients."""

import re

import numpy as np
import pytest

from tests import ops_tasks
from tests.compare import log_distance, relative_distance
from tests.jobs import start
from tests.ranks.pool import together


@pytest.mark.parametrize(
    ("size", "kind", "num_rows"),
    [(2, "rows-part", 65), (2, "whole", 75), (2, "hardest", 65), (2, "in-a-loss", 75), (4, "rows-part", 66)]
    + [pytest.param(4, kind, 66, marks=pytest.mark.slow) for kind in ("whole", "hardest", "in-a-loss")],
)
def test_losses_across_the_batch_end_where_one_process_ends(size, kind, num_rows, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(ops_tasks.train, kind=kind, num_rows=num_rows, distributed=False),
        ranks(size).begin(ops_tasks.train, kind=kind, num_rows=num_rows, distributed=True),
    )
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5


def expected(size: int, name: str, values: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What each rank gets of a collective of `values`, and what gradient, computed here with all ranks' values."""
    ones = np.ones(2 * size)
    numbers = np.arange(1, 2 * size + 1)
    if name == "all_gather":
        joined = np.concatenate(values)
        weights = sum(rank + 1.0 for rank in range(size)) * np.arange(1, joined.size + 1).reshape(joined.shape)
        return [joined] * size, np.split(weights, np.cumsum([len(value) for value in values])[:-1])
    all_weights = sum(range(1, size + 1)) * numbers
    if name == "all_to_all":
        results = [np.concatenate([np.split(value, size)[rank] for value in values]) for rank in range(size)]
        sent = [
            np.concatenate([np.split(numbers, size)[r] * (other + 1.0) for other in range(size)]) for r in range(size)
        ]
        return results, sent
    if name == "broadcast":
        return [values[-1]] * size, [all_weights * (rank == size - 1) for rank in range(size)]
    if name in ("min", "max"):
        owner = 0 if name == "min" else size - 1
        return [values[owner]] * size, [all_weights * (rank == owner) for rank in range(size)]
    factor = 1.0 / size if name in ("mean", "max of equals") else 1.0
    return [factor * sum(values)] * size, [factor * all_weights * ones] * size


@pytest.mark.parametrize("size", [2, 4])
def test_collectives_and_their_gradients_are_those_of_all_ranks(size, ranks):
    results = ranks(size).run(ops_tasks.by_hand)
    assert [result["rank"] for result in results] == list(range(size)) and results[0]["size"] == size
    assert [result["offset"] for result in results] == [rank * (rank + 1) // 2 for rank in range(size)]
    given = {name: [np.full(2 * size, rank + 1.0) for rank in range(size)] for name in ("sum", "mean", "min", "max")}
    given["broadcast"] = given["sum"]
    given["max of equals"] = [np.ones(2 * size)] * size
    given["all_to_all"] = [value * np.arange(2 * size) for value in given["sum"]]
    given["all_gather"] = [np.arange(2.0 * (r + 1)).reshape(r + 1, 2) + 10 * r for r in range(size)]
    for name, values in given.items():
        want, gradients = expected(size, name, values)
        for rank, result in enumerate(results):
            for how in ("eager", "graph"):
                value, gradient = result[name, how]
                np.testing.assert_allclose(value, want[rank], err_msg=f"{name} {how}")
                np.testing.assert_allclose(gradient, gradients[rank], err_msg=f"gradient of {name} {how}")
    assert results[0]["integers"] == [rank for rank in range(size) for _ in range(rank + 1)]


def test_collectives_that_cannot_be_are_one_sentence(ranks):
    for said in ranks(2).run(ops_tasks.misuse):
        assert ["unknown" in said[0], "2 rank(s)" in said[1], "equal parts" in said[2], "within a loop" in said[3]] == [
            True
        ] * 4, said


@pytest.mark.long
def test_the_example_ends_with_the_same_numbers_on_any_number_of_ranks():
    found = {}
    for launcher, size in (("python", 1), ("mpirun", 2)):
        job = start(launcher, size, "examples/contrastive.py")
        assert job.status == 0, job.output
        [(num_ranks, numbers)] = re.findall(r"(\d) rank\(s\), contrast \[(.*)\]", job.output)
        assert int(num_ranks) == size
        found[size] = [float(number) for number in numbers.split(", ")]
    assert found[2] == pytest.approx(found[1], abs=2e-4) and found[1][-1] < found[1][0]
