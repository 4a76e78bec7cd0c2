"""N ranks end where one process ends: with each value of `tests/trainings.py`, each pair of values, and each triple."""

import functools
import itertools

import numpy as np
import pytest

from tests import trainings
from tests.compare import comparable, log_distance, relative_distance, slot_distance
from tests.covering import covering, fewest, fits, meetings
from tests.ranks.pool import HANGS, together
from tests.trainings import AXES, UNFIT

TOLERANCE = 1e-10  # of float64
LOGS = 1e-6  # of losses and metrics, which Keras sums in float32 in part

PAIRS = covering(AXES, 2, UNFIT)
# XLA compiles a step on each rank, which takes 4 ranks of 2 cores long.
QUICK = [row for row in PAIRS if row["execution"] != "XLA" or trainings.num_ranks(row) <= 2]
EACH = fewest(sorted(QUICK, key=trainings.num_ranks), lambda row: set(row.items()))
MANY_VALUES = ("model", "optimizer", "input")
WITH_EACH_STRATEGY = fewest(
    QUICK, lambda row: {(row["strategy"], axis, row[axis]) for axis in AXES if axis not in MANY_VALUES}
)
USUAL = {axis: values[0] for axis, values in AXES.items()}
NUM_PARTS = 40  # of the trainings that all triples take


def runs() -> list:
    """`make test` has each value, `make test-long` each strategy with those of most axes, `make test-all` each pair."""
    marks = [
        () if row in EACH else pytest.mark.long if row in WITH_EACH_STRATEGY else pytest.mark.slow for row in PAIRS
    ]
    return [pytest.param(row, id="-".join(row.values()), marks=mark) for row, mark in zip(PAIRS, marks, strict=True)]


def differ_nowhere(training: dict, ranks, plain, exactness) -> None:
    size = trainings.num_ranks(training)
    [twin], results = together(
        plain.begin(trainings.train, training=training, distributed=False),
        ranks(size).begin(trainings.train, training=training, distributed=True),
    )
    assert len(results) == size
    exactness(slot_distance(results, twin["slots"]), 10 * TOLERANCE)
    assert (results[0]["held"] < twin["held"]) == divides(training)
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), TOLERANCE)
        for own, theirs in zip(result["predicted"], twin["predicted"], strict=True):
            exactness(relative_distance(own, theirs), 100 * TOLERANCE)
        assert log_distance(comparable(result["logs"]), comparable(twin["logs"])) < LOGS
        np.testing.assert_allclose(result["evaluated"], twin["evaluated"], rtol=LOGS)
        assert result["logs"] == results[0]["logs"]
        assert all(map(np.array_equal, result["weights"], results[0]["weights"]))


def divides(training: dict) -> bool:
    """True if ranks store parts: of weights, or of an optimizer's state, where there is any."""
    if training["strategy"] in trainings.DATA_PARALLEL and training["strategy"] != "zero 3":
        only_sums = training["optimizer"] == "accumulating, clipped norm"  # of steps' gradients, whole in stage 1
        has_state = training["optimizer"] not in ("sgd", "schedule")
        return training["strategy"].startswith("zero") and has_state and not (only_sums and "1" in training["strategy"])
    return training["strategy"] != "Keras's own"


@pytest.mark.parametrize("training", runs())
def test_ranks_end_where_one_process_ends(training, ranks, plain, exactness):
    try:
        differ_nowhere(training, ranks, plain, exactness)
    except AssertionError as error:
        if HANGS in str(error):  # it would hang again, and again
            raise
        blamed = taken_apart(training, lambda other: fails(other, ranks, plain, exactness))
        raise AssertionError(f"{error}\nIt takes only {blamed} of {training}") from error


def taken_apart(training: dict, fails) -> dict:
    """What is left of a training that fails, once each value that it does not take is the usual one."""
    left = training | {"seed": trainings.seed_of_layout(training)}
    for axis, usual in USUAL.items():
        other = left | {axis: usual}
        if left[axis] != usual and fits(other, UNFIT) and fails(other):
            left = other
    return {axis: left[axis] for axis in USUAL if left[axis] != USUAL[axis]}


def fails(training: dict, ranks, plain, exactness) -> bool:
    try:
        differ_nowhere(training, ranks, plain, exactness)
    except (AssertionError, ValueError):  # also of shapes that differ
        return True
    return False


def test_what_fails_is_taken_apart():
    row = dict(USUAL, optimizer="adagrad", loss="sum", strategy="zero 1", made="loaded weights")
    assert fits(row, UNFIT)
    found = taken_apart(row, lambda other: other["optimizer"] == "adagrad" and other["strategy"].startswith("zero"))
    assert found == {"optimizer": "adagrad", "strategy": "zero 1"}


@pytest.mark.parametrize(("strength", "rows"), [(1, EACH), (2, PAIRS)])
def test_values_meet(strength, rows):
    assert all(fits(row, UNFIT) and row.keys() == AXES.keys() for row in rows)
    met = {
        tuple((axis, row[axis]) for axis in names)
        for row in rows
        for names in itertools.combinations(sorted(AXES), strength)
    }
    apart = [dict(each) for each in meetings(AXES, strength) if each not in met]
    assert [each for each in apart if fits(each, UNFIT)] == []


FOUND = {  # by drawing, and mended
    "norm of divided gradients": {"step": "clipping"},
    "divided gradients assigned by hand": {"step": "hand-made"},
    "divided along the batch axis, ranks without rows": {
        "strategy": "mesh 2x1",
        "choices": [0, 0, 1],
        "step": "clipping",
    },
    "losses of rows, batches of a fixed odd size": {
        "strategy": "data",
        "loss": "rows",
        "step": "own",
        "rows": "odd batches",
        "input": "fixed shapes",
        "execution": "graph",
    },
    "losses of rows, Keras's step, sizes known late": {
        "strategy": "data",
        "loss": "rows",
        "input": "generator",
        "rows": "odd batches",
        "execution": "graph",
    },
    "norm of a divided table's gradient": {
        "model": ("tokens", [("sequence-dense", 4, "relu")]),
        "choices": [16, 0, 0],
        "step": "clipping",
    },
    "divided along the batch axis, assigned by hand behind a sum": {
        "model": ("vectors", [("activation", 4, "relu")]),
        "strategy": "mesh 2x1",
        "choices": [0, 1, 47],
        "step": "hand-made",
        "input": "unknown length",
        "rows": "odd batches",
        "execution": "two steps",
    },
}


@pytest.mark.parametrize("what", FOUND)
def test_what_drawing_has_found(what, ranks, plain, exactness):
    simple = {"model": ("vectors", [("dense", 4, "relu")]), "strategy": "mesh 1x2", "choices": [0, 0, 2]}
    usual = USUAL | {"rows": "batches of 1", "execution": "eager", "also": "evaluation"}
    differ_nowhere(usual | simple | FOUND[what], ranks, plain, exactness)


@functools.cache
def triples() -> list[dict]:
    return covering(AXES, 3, UNFIT, PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_triples_end_where_one_process_ends(part, ranks, plain, exactness):
    wrong = [row for row in triples()[part::NUM_PARTS] if fails(row, ranks, plain, exactness)]
    assert not wrong, wrong
