"""Random models, ways to compile and fit them, and strategies: N ranks end where one process ends."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import random_models, random_trainings
from tests.compare import log_distance, relative_distance
from tests.test_model_parallel import settle

LOGS = 2e-5  # of losses, which Keras sums in float32
ABSOLUTE = 1e-5  # accuracies and losses near zero


@st.composite
def drawn_trainings(draw) -> dict:
    """All that a training is made of, as plain values."""
    kind = draw(st.sampled_from(list(random_models.NUM_DIMS)))
    fitting = [name for name, (dims, _) in random_models.PARTS.items() if dims == random_models.NUM_DIMS[kind]]
    part = st.tuples(st.sampled_from(fitting), st.sampled_from([4, 8]), st.sampled_from(["relu", "tanh"]))
    strategy = draw(st.sampled_from(random_trainings.STRATEGIES))
    # Plain Keras takes the norm of the single rows of a table's gradient, before equal rows are added.
    optimizers = [
        name for name in random_trainings.OPTIMIZERS if kind != "tokens" or name not in random_trainings.CLIPPING
    ]
    eager = draw(st.sampled_from([True, True, False]))
    return {
        "kind": kind,
        "parts": draw(st.lists(part, min_size=1, max_size=2)),
        "strategy": strategy,
        "choices": draw(st.lists(st.integers(0, 99), min_size=3, max_size=5)),
        "optimizer": draw(st.sampled_from(optimizers)),
        "reduction": draw(st.sampled_from(random_trainings.REDUCTIONS)),
        "input": draw(st.sampled_from(random_trainings.INPUTS)),
        "step": draw(st.sampled_from(random_trainings.STEPS)),
        "made": draw(
            st.sampled_from(random_trainings.MADE if strategy not in random_trainings.MESHES else ("in scope",))
        ),
        "batch_size": draw(st.sampled_from([1, 3, 8, 8, 13])),
        "shuffle": draw(st.booleans()),
        "weighted": draw(st.booleans()),
        "validated": draw(st.booleans()),
        "eager": eager,
        "steps_per_execution": 1 if eager else draw(st.sampled_from([1, 2])),
    }


def differ_nowhere(drawn: dict, ranks, plain, exactness) -> None:
    [twin] = plain.run(random_trainings.train, drawn=drawn, distributed=False)
    results = ranks(2).run(random_trainings.train, drawn=drawn, distributed=True)
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert log_distance(result["logs"], twin["logs"]) < LOGS
        np.testing.assert_allclose(result["evaluated"], twin["evaluated"], rtol=LOGS, atol=ABSOLUTE)
    assert results[0]["logs"] == results[1]["logs"]


PLAIN = {
    "kind": "vectors",
    "parts": [("dense", 4, "relu")],
    "strategy": "model (1, 2)",
    "choices": [0, 0, 2],
    "optimizer": "sgd",
    "reduction": "sum_over_batch_size",
    "input": "arrays",
    "step": "Keras's",
    "made": "in scope",
    "batch_size": 1,
    "shuffle": False,
    "weighted": False,
    "validated": False,
    "eager": True,
    "steps_per_execution": 1,
}
FOUND = {  # by drawing, and mended
    "norm of divided gradients": {"step": "clipping"},
    "divided gradients assigned by hand": {"step": "hand-made"},
    "divided along the batch axis, ranks without rows": {
        "strategy": "model (2, 1)",
        "choices": [0, 0, 1],
        "step": "clipping",
    },
    "norm of a divided table's gradient": {
        "kind": "tokens",
        "parts": [("sequence-dense", 4, "relu")],
        "choices": [16, 0, 0],
        "step": "clipping",
    },
}


@pytest.mark.parametrize("what", FOUND)
def test_what_drawing_has_found(what, ranks, plain, exactness):
    differ_nowhere(PLAIN | FOUND[what], ranks, plain, exactness)


@pytest.mark.slow
@settle(1000)
@given(drawn=drawn_trainings())
def test_many_random_trainings(drawn, ranks, plain, exactness):
    differ_nowhere(drawn, ranks, plain, exactness)
