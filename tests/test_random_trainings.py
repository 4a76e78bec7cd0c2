"""Random models, ways to compile and fit them, and strategies: N ranks end where one process ends."""

from random import Random

import numpy as np
import pytest

from tests import random_models, random_trainings
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together

TOLERANCE = 1e-10  # of float64
LOGS = 1e-6  # of losses and metrics, which Keras sums in float32 in part


def drawn(seed: int) -> dict:
    """All that a training is made of, as plain values; each choice is independent of the others."""
    random = Random(seed)
    choose = random.choice
    kind = choose(list(random_models.NUM_DIMS))
    fitting = [name for name, (dims, _) in random_models.PARTS.items() if dims == random_models.NUM_DIMS[kind]]
    strategy = choose(random_trainings.STRATEGIES)
    step = choose(random_trainings.STEPS)
    unfit = unfit_optimizers(kind, strategy, step)
    optimizers = [name for name in random_trainings.OPTIMIZERS if name not in unfit]
    source = choose(random_trainings.INPUTS)
    eager = choose([True, False])
    parts = [(choose(fitting), choose([4, 8]), choose(["relu", "tanh"])) for _ in range(choose([1, 2]))]
    return {
        "kind": kind,
        "parts": parts,
        "strategy": strategy,
        "choices": [random.randrange(100) for _ in range(5)],
        "optimizer": choose(optimizers),
        "reduction": choose(random_trainings.REDUCTIONS),
        "input": source,
        "step": step,
        "made": choose(random_trainings.MADE if strategy not in random_trainings.MESHES else ("in scope",)),
        "batch_size": choose([1, 3, 8, 8, 13]),
        "shuffle": choose([True, False]),
        "weighted": choose([True, False]),
        "validated": choose([True, False]),
        "eager": eager,
        # At the end of data of unknown length plain Keras counts a step too many, unless it is one of several.
        "steps_per_execution": 1 if eager else 2 if source == "unknown length" else choose([1, 2]),
    }


def unfit_optimizers(kind: str, strategy: str, step: str) -> set[str]:
    """Those that docs/exactness.md says are not one process's, or that plain Keras fails with."""
    unfit = set()
    if kind == "tokens":  # plain Keras takes the norm of the single rows of a table's gradient, before they are added
        unfit |= set(random_trainings.CLIPPING)
    adds_rows = strategy == "model (2, 1)" or step != "Keras's"
    if kind == "tokens" and strategy in random_trainings.MESHES and adds_rows:
        unfit |= set(random_trainings.SQUARING)
    return unfit | {"ema"} if step == "hand-made" else unfit  # which plain Keras needs a built optimizer for


def differ_nowhere(drawn: dict, ranks, plain, exactness) -> None:
    [twin], results = together(
        plain.begin(random_trainings.train, drawn=drawn, distributed=False),
        ranks(2).begin(random_trainings.train, drawn=drawn, distributed=True),
    )
    assert len(results) == 2
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), TOLERANCE)
        assert log_distance(result["logs"], twin["logs"]) < LOGS
        np.testing.assert_allclose(result["evaluated"], twin["evaluated"], rtol=LOGS)
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
    "losses of rows, batches of a fixed odd size": {
        "strategy": "data",
        "reduction": None,
        "step": "own",
        "batch_size": 3,
        "eager": False,
    },
    "losses of rows, Keras's step, sizes known late": {
        "strategy": "data",
        "reduction": None,
        "input": "generator",
        "batch_size": 13,
        "eager": False,
    },
    "norm of a divided table's gradient": {
        "kind": "tokens",
        "parts": [("sequence-dense", 4, "relu")],
        "choices": [16, 0, 0],
        "step": "clipping",
    },
    "divided along the batch axis, assigned by hand behind a sum": {
        "parts": [("activation", 4, "relu")],
        "strategy": "model (2, 1)",
        "choices": [0, 1, 47],
        "step": "hand-made",
        "input": "unknown length",
        "batch_size": 3,
        "eager": False,
        "steps_per_execution": 2,
    },
}


@pytest.mark.parametrize("what", FOUND)
def test_what_drawing_has_found(what, ranks, plain, exactness):
    differ_nowhere(PLAIN | FOUND[what], ranks, plain, exactness)


def differ_nowhere_of(seeds: range, ranks, plain, exactness) -> None:
    """Runs the trainings of all seeds, and tells of each that differs, hangs or fails."""
    wrong = {}
    for seed in seeds:
        try:
            differ_nowhere(drawn(seed), ranks, plain, exactness)
        except AssertionError as error:
            wrong[seed] = f"{drawn(seed)}\n{str(error)[-2000:]}"
    assert not wrong, "\n\n".join(f"seed {seed}: {said}" for seed, said in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(20, 200, 20))])
def test_random_trainings(first, ranks, plain, exactness):
    differ_nowhere_of(range(first, first + 20), ranks, plain, exactness)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(200, 1000, 50))
def test_many_random_trainings(first, ranks, plain, exactness):
    differ_nowhere_of(range(first, first + 50), ranks, plain, exactness)
