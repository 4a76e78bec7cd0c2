"""Every plan that is found runs, and ends where one process ends: models, machines and limits of memory at random."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

from tests import found_plan_tasks, random_models
from tests.known_machine import linked
from tests.ranks.pool import together

TOLERANCE = 1e-10  # of float64
OF_TWO = ("data parallel", "divided", "stored in parts")
MANY = [(2, 0, OF_TWO), (2, 50, OF_TWO), (2, 100, OF_TWO), (4, 150, (*OF_TWO, "mixed"))]


def drawn(seed: int) -> dict:
    """A model, and what it is searched for."""
    draw = Random(seed)
    kind, parts = random_models.draw_model(draw)
    return {
        "kind": kind,
        "parts": parts,
        "batch_size": draw.choice([4, 8, 12]),
        "search": draw.choice(["dynamic", "recursive", "exact"]),
        "share": draw.choice([None, draw.uniform(0.3, 1)]),
        "machine": linked(draw).text(),
    }


def kind_of(plan: dict) -> str:
    """What a plan divides: rows alone, variables by one of the axes, or both."""
    if not plan["axes"]:
        return "data parallel"
    if "model" not in plan["axes"]:
        return "stored in parts"
    return "mixed" if plan["mesh"][0] > 1 else "divided"


def found_for(drawn: dict, num_ranks: int, ranks, plain, exactness) -> str:
    """Requires that ranks end where one process ends by the plan for a model, and says which kind that is."""
    alone = {name: drawn[name] for name in ("kind", "parts", "batch_size")}
    plans, [theirs] = together(
        ranks(num_ranks).begin(found_plan_tasks.find_and_train, **drawn),
        plain.begin(found_plan_tasks.train, **alone),
    )
    assert len(plans) == num_ranks
    for plan in plans:
        for ours, weights in zip(plan["weights"], theirs, strict=True):
            exactness(np.abs(ours - weights).max() / max(np.abs(weights).max(), 1e-3), TOLERANCE)
    return kind_of(plans[0])


def kinds_of(seeds: Iterable[int], num_ranks: int, ranks, plain, exactness) -> Counter:
    """How often each kind of plan is found; tells of each model that fails or ends elsewhere."""
    found, wrong = Counter(), {}
    for seed in seeds:
        try:
            found[found_for(drawn(seed), num_ranks, ranks, plain, exactness)] += 1
        except AssertionError as error:
            wrong[seed] = str(error)[-2000:]
    assert not wrong, "\n\n".join(f"seed {seed}: {said}" for seed, said in wrong.items())
    return found


@pytest.mark.long
def test_some_plans_that_are_found_end_where_one_process_ends(ranks, plain, exactness):
    found = kinds_of(range(5, 15), 2, ranks, plain, exactness)
    assert set(found) == {"data parallel", "divided", "stored in parts"}


@pytest.mark.slow
@pytest.mark.parametrize(("num_ranks", "first", "kinds"), MANY)
def test_plans_that_are_found_end_where_one_process_ends(num_ranks, first, kinds, ranks, plain, exactness):
    found = kinds_of(range(first, first + 50), num_ranks, ranks, plain, exactness)
    assert all(found[kind] >= 3 for kind in kinds), found
