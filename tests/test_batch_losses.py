"""A loss that looks across the rows of a batch is one process's on ranks, whatever it is written like."""

import pytest

from tests import batch_loss_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together

ADDED = ("added: each row", "added: sum", "added: mean", "added: means of columns", "activity: l2", "step: sum")
KINDS = {name: "batch" if name in tasks.ACROSS else "rows" for name in tasks.LOSSES} | {
    **{"sum": "sum", "mean": "mean", "mean that is summed": "mean"},
    **{"dice": "batch", "tversky": "batch", "subclass that is summed": "batch"},
}


@pytest.mark.parametrize(
    ("name", "size", "how"),
    [
        pytest.param("each", 2, {}, marks=pytest.mark.long),
        pytest.param("each", 3, {"run_eagerly": True}, marks=pytest.mark.long),
        pytest.param("each", 3, {"steps_per_execution": 2}, marks=pytest.mark.long),
        *((name, 2, {}) for name in ("rmse", "sum", "circle", "outputs: two", *ADDED)),
        *((name, 3, {}) for name in ("sum", "added: each row", "step: sum")),
        *(pytest.param(name, 4, {}, marks=pytest.mark.long) for name in ("each", *ADDED)),
        *((name, 2, {"weighted": True}) for name in ("mean", "class balanced")),
        ("each row", 2, {"jit_compile": True}),
    ],
)
def test_it_trains_and_tests_as_in_one_process(name, size, how, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(tasks.trained, name=name, distributed=False, **how),
        ranks(size).begin(tasks.trained, name=name, distributed=True, **how),
    )
    assert len(results) == size
    for result in results:
        assert result["logs"].keys() == twin["logs"].keys()
        for key, values in twin["logs"].items():
            assert result["logs"][key] == pytest.approx(values, rel=1e-12, abs=1e-15), key
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-12)
        if name == "each" and size == 2:
            assert result["kinds"] == KINDS, "only losses that need the whole batch are given it"
    warned = [each for each in results[0]["said"] if "is summed over ranks" not in each]
    assert warned == [] and all(result["said"] == [] for result in results[1:])


@pytest.mark.parametrize("name", tasks.LAYERS)
def test_layers_that_look_across_rows_are_told_of(name, ranks):
    first, second = ranks(2).run(tasks.said_of_layer, name=name)
    assert second["said"] == []
    assert len(first["said"]) == (name in ("deviation", "centered")), first
    assert all("other rows of its batch" in each for each in first["said"])
    assert first["calls"] == second["calls"]


def test_models_of_keras_s_own_layers_need_no_look(ranks):
    [found] = ranks(1).run(tasks.may_mix)
    assert {name for name, may in found.items() if not may} == {
        "Keras's layers",
        "Keras's recurrent layers",
        "MobileNet",
        "own step",
    }
    assert len(found) == 13
