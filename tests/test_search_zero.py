"""The search knows the stages of ZeRO: what they send and hold, and which of them a model needs that does not fit."""

import pytest

from tests import search_tasks
from tests.known_machine import KNOWN
from tests.ranks.pool import together
from tests.test_search import require_as_alone

COLUMNS_AND_ROWS = {"wide_0/kernel": (None, "model"), "wide_0/bias": ("model",), "wide_1/kernel": ("model", None)}
WEIGHTS = 3 * 256 * 256 * 4


@pytest.mark.parametrize("mesh", [(2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_is_planned_is_what_a_step_sends_and_holds(zero, mesh, ranks):
    """A layer that is computed again gathers its weight once more where that is divided."""
    again = ((), ("wide_1",)) if mesh == (2, 1) and zero > 1 else ((),)
    options = {"layout": COLUMNS_AND_ROWS if mesh[1] > 1 else {}, "mesh": mesh, "zero": zero, "recomputed": again}
    [found] = ranks(1).run(search_tasks.compare_named, name="wide", **options)
    for each in found:
        assert each["predicted_bytes"] == each["counted_bytes"] > WEIGHTS / mesh[1]
        assert each["predicted_variables"] == each["counted_variables"]
    part = WEIGHTS // 3 // 2
    assert found[-1]["counted_bytes"] - found[0]["counted_bytes"] == (part if zero == 3 and again[1:] else 0)


def test_state_that_is_gathered_for_whole_updates_is_planned(ranks):
    [[found]] = ranks(1).run(search_tasks.compare_named, name="updated_whole", layout={}, mesh=(2, 1), zero=1)
    assert found["predicted_bytes"] == found["counted_bytes"] >= 2 * WEIGHTS
    assert found["predicted_variables"] == found["counted_variables"]


@pytest.mark.parametrize("search", ["dynamic", "recursive", "exact"])
def test_the_first_stage_that_makes_a_model_fit_is_taken(search, ranks):
    """There is less and less memory, each time just too little for the plan that was found before.

    The fastest stores weights in parts along the batch axis, by a layout, so that the first stage is not needed.
    """
    options = {"name": "wide", "batch_size": 8, "num_ranks": 2, "mesh": (2, 1), "machine": KNOWN.text()}
    options |= {"search": search}
    [found] = ranks(1).run(search_tasks.find_best, **options)
    assert found["zero"] == 0 and set(found["layouts"].values()) == {("batch", None)}
    stages = []
    while found["zero"] < 3:
        memory = 0.99 * found["bytes"]
        [found] = ranks(1).run(search_tasks.find_best, memory=memory, **options)
        assert found["bytes"] <= memory
        stages.append(found["zero"])
    assert stages == [2, 3]


@pytest.mark.parametrize("inline", [False, True])
def test_what_is_found_trains_as_one_process(inline, ranks, plain, exactness):
    limits, machine = {"memory": 3.2 * WEIGHTS, "mesh": (2, 1)}, KNOWN.text()
    if inline:
        begun = ranks(2).begin(search_tasks.train_inline, name="wide", machine=machine, **limits)
    else:
        begun = ranks(2).begin(search_tasks.search_and_train, name="wide", options=limits, machine=machine)
    results, [alone] = together(begun, plain.begin(search_tasks.train, name="wide"))
    require_as_alone(results, alone, exactness)
    for result in results:
        stage = result["options"]["zero"]
        assert stage > 0 and (f"zero={stage}." in result["plan"] if not inline else result["stage"] == stage)
