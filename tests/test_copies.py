"""Ranks that hold copies along a mesh's axis, and whose gradients have other bits, as GPUs', still have one model."""

import numpy as np
import pytest

from tests import copies_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together

WAYS = [
    *((name, (1, 2), {}) for name in tasks.OPTIMIZERS),
    *((name, (2, 2), {}) for name in ("sgd", "clipped", "accumulated")),
    ("clipped", (1, 2), {"own_step": True}),
    ("sgd", (2, 2), {"own_step": True}),
    *(("sgd", (2, 2), {"zero": stage}) for stage in (1, 2, 3)),
]


@pytest.mark.parametrize(("name", "mesh", "options"), WAYS, ids=str)
def test_copies_stay_the_same(name, mesh, options, ranks, plain, exactness):
    own = {key: value for key, value in options.items() if key == "own_step"}
    [theirs], results = together(
        plain.begin(tasks.train, name=name, mesh=None, **own),
        ranks(mesh[0] * mesh[1]).begin(tasks.train, name=name, mesh=mesh, **options),
    )
    assert len(results) == mesh[0] * mesh[1]
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-12)
        assert all(map(np.array_equal, ours["weights"], results[0]["weights"]))


@pytest.mark.parametrize("own_step", [False, True])
def test_copies_see_the_same_logs(own_step, ranks):
    """Callbacks on all ranks decide by them; metrics have float32's bits."""
    results = ranks(4).run(tasks.train, name="sgd", mesh=(2, 2), own_step=own_step, bits=2.0**-16)
    assert len(results) == 4
    for ours in results:
        assert ours["losses"] == results[0]["losses"] and len(ours["losses"]) == 12


def test_copies_would_part(ranks):
    outcomes = ranks(2).attempt(tasks.train, name="sgd", mesh=(1, 2), shared=False)
    assert all("weights have parted: " in outcome.message for outcome in outcomes)
