"""A loss that looks across the rows of a batch is one process's on ranks, whatever it is written like."""

import pytest

from tests import batch_loss_tasks as tasks
from tests.ranks.pool import together

ADDED = ("added: each row", "added: sum", "added: mean", "added: means of columns", "activity: l2", "step: sum")
QUICK_ON_3 = ("rmse", "sum", "added: each row", "step: sum")


def require_one_process_s(name: str, size: int, ranks, plain, exactness, **how) -> list[dict]:
    [twin], results = together(
        plain.begin(tasks.trained, name=name, distributed=False, **how),
        ranks(size).begin(tasks.trained, name=name, distributed=True, **how),
    )
    assert len(results) == size
    for result in results:
        assert result["logs"].keys() == twin["logs"].keys()
        exactness(tasks.distance(result, twin), 1e-12)
    return results


@pytest.mark.parametrize("name", [*tasks.LOSSES, *ADDED, "outputs: two"])
def test_it_trains_and_tests_as_in_one_process(name, ranks, plain, exactness):
    results = require_one_process_s(name, 2, ranks, plain, exactness)
    warned = [each for each in results[0]["said"] if "is summed over ranks" not in each]
    assert warned == [] and results[1]["said"] == []


@pytest.mark.parametrize(
    ("name", "size", "how"),
    [
        *((name, 3, {}) for name in QUICK_ON_3),
        *(pytest.param(name, 4, {}, marks=pytest.mark.long) for name in (*tasks.ACROSS, *ADDED)),
        ("rmse", 2, {"run_eagerly": True}),
        ("concordance", 2, {"steps_per_execution": 2}),
        ("mean", 2, {"weighted": True}),
        ("class balanced", 2, {"weighted": True}),
        ("each row", 2, {"jit_compile": True}),
    ],
)
def test_it_does_so_on_any_ranks_with_any_step(name, size, how, ranks, plain, exactness):
    require_one_process_s(name, size, ranks, plain, exactness, **how)


def test_only_losses_that_need_the_whole_batch_are_given_it(ranks):
    expected = {name: "batch" if name in tasks.ACROSS else "rows" for name in tasks.LOSSES}
    expected |= {"sum": "sum", "mean": "mean", "mean that is summed": "mean", "dice": "batch", "tversky": "batch"}
    expected |= {"subclass that is summed": "batch"}
    assert ranks(2).run(tasks.kinds) == [expected] * 2


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
