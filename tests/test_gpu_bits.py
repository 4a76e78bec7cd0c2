"""Ranks whose numbers have bits of their own, as those of GPUs, still have one model, and one process's."""

import numpy as np
import pytest

from tests import gpu_bits_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together

# Ranks or a mesh, the optimizer, what else.
WAYS = [
    *((size, name, {}) for size in (2, 3) for name in tasks.OPTIMIZERS),
    *(((1, 2), name, {}) for name in tasks.OPTIMIZERS),
    *(((2, 2), name, {}) for name in ("sgd", "clipped", "accumulated")),
    *((place, "sgd", {"step": step}) for place in (2, (1, 2), (2, 2)) for step in ("own", "clips")),
    *((place, "clipped", {"step": "own"}) for place in (2, (1, 2))),
    *(((2, 2), "sgd", {"zero": stage, "zero_min_kb": 0}) for stage in (1, 2, 3)),
    *((place, "sgd", {"step": "clips", "zero": 3, "zero_min_kb": 0}) for place in (2, (2, 2))),
    *(((2, 2), "sgd", {"step": step, "zero": 1, "zero_min_kb": 0}) for step in ("own", "clips")),
]


@pytest.mark.parametrize(("place", "name", "options"), WAYS, ids=str)
def test_bits_of_ranks_do_not_part_them(place, name, options, ranks, plain, exactness):
    size, mesh = (place, None) if isinstance(place, int) else (place[0] * place[1], place)
    own = {key: value for key, value in options.items() if key == "step"}
    [theirs], results = together(
        plain.begin(tasks.train, name=name, distributed=False, **own),
        ranks(size).begin(tasks.train, name=name, distributed=True, mesh=mesh, **options),
    )
    assert len(results) == size
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"][: len(ours["weights"])]), 1e-12)
        assert all(map(np.array_equal, ours["weights"], results[0]["weights"]))


@pytest.mark.parametrize("step", ["", "own"])
def test_copies_see_the_same_logs(step, ranks):
    """Callbacks on all ranks decide by them; metrics have float32's bits."""
    results = ranks(4).run(tasks.train, name="sgd", distributed=True, mesh=(2, 2), step=step, bits=2.0**-16)
    assert len(results) == 4
    for ours in results:
        assert ours["losses"] == results[0]["losses"] and len(ours["losses"]) == 12


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("sgd", options) for options in ({}, {"mesh": (1, 2)}, {"step": "clips"})),
        ("clipped", {"in_own_order": False}),
    ],
    ids=str,
)
def test_bits_of_ranks_would_part_them(name, options, ranks):
    outcomes = ranks(2).attempt(tasks.train, name=name, distributed=True, shared=False, bits=2.0**-16, **options)
    assert len(outcomes) == 2 and all("weights have parted: " in outcome.message for outcome in outcomes)
