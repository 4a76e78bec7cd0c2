"""Numbers that steps of users' own return reach callbacks and callers as one process's, of batches and of epochs."""

import pytest

from tests import own_log_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("tracked", [(), ("kept",)], ids=str)
@pytest.mark.parametrize("compiled", [None, "mse"])
def test_logs_are_one_processs(kind, tracked, compiled, ranks, plain):
    how = {"kind": kind, "tracked": tracked, "compiled": compiled}
    [theirs], results = together(
        plain.begin(tasks.train, distributed=False, **how), ranks(2).begin(tasks.train, distributed=True, **how)
    )
    assert len(results) == 2 and len(theirs) == 2 * (3 + 2 + 1) + 3
    for ours in results:
        assert [(when, sorted(logs)) for when, logs in ours] == [(when, sorted(logs)) for when, logs in theirs]
        for (when, own), (_, wanted) in zip(ours, theirs, strict=True):
            assert own == pytest.approx(wanted, rel=1e-6), when


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_what_is_printed_is_one_processs_loss(kind, is_read, ranks, plain):
    [theirs] = plain.run(tasks.train, kind=kind, tracked=("kept",), compiled=None, distributed=False)
    wanted = [logs["loss"] for when, logs in theirs if when == "batch"]
    (lines, shown), _ = ranks(2).run(tasks.printed, kind=kind, tracked=("kept",), is_read=is_read)
    assert lines == pytest.approx(wanted, rel=1e-6) and len(lines) == 6
    assert shown and all(loss == pytest.approx(wanted[step], rel=1e-6) for step, loss in shown)


@pytest.mark.parametrize("kind", ["mean", "sum", "keras"])
@pytest.mark.parametrize("evaluates_first", [False, True])
@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("custom_loss", ["auto", "as it is"])
def test_numbers_of_several_kinds_are_one_processs(kind, evaluates_first, is_function, custom_loss, ranks, plain):
    how = {"kind": kind, "is_function": is_function, "evaluates_first": evaluates_first}
    said = "auto" if custom_loss == "auto" else "sum" if kind == "sum" else "mean"
    [theirs], results = together(
        plain.begin(tasks.train_mixed, distributed=False, custom_loss="auto", **how),
        ranks(2).begin(tasks.train_mixed, distributed=True, custom_loss=said, **how),
    )
    assert len(results) == 2
    for ours in results:
        assert relative_distance(ours["weights"], theirs["weights"]) < 1e-8
        for (when, own), (_, wanted) in zip(ours["seen"], theirs["seen"], strict=True):
            assert own == pytest.approx(wanted, rel=1e-6), when


@pytest.mark.parametrize("is_test", [False, True])
def test_a_number_that_is_neither_a_mean_nor_a_sum_is_told(is_test, ranks):
    first, second = ranks(2).run(tasks.said_of_roots, is_test=is_test)
    assert second == [] and len(first) == 1
    assert "keeps or returns as 'root' is neither a mean nor a sum over rows" in first[0]


HABITS = (
    *("a_variable", "a_branch", "an_integer", "rows", "without_names", "a_change", "python", "attributes"),
    "sixteen_bits",
)


@pytest.mark.parametrize("kind", ["sum", "keras"])
@pytest.mark.parametrize(
    ("habit", "is_eager"),
    [
        *((habit, False) for habit in HABITS),
        # Keras's own eager steps take no variables of TensorFlow's in logs.
        *(pytest.param(habit, True, marks=pytest.mark.long) for habit in HABITS if habit != "a_variable"),
    ],
)
def test_what_steps_do_besides_is_one_processs(habit, kind, is_eager, ranks, plain):
    how = {"habit": habit, "kind": kind, "is_eager": is_eager}
    [theirs], results = together(
        plain.begin(tasks.with_habit, distributed=False, **how),
        ranks(2).begin(tasks.with_habit, distributed=True, **how),
    )
    assert len(results) == 2
    close = 1e-2 if habit == "sixteen_bits" else 1e-6
    for ours in results:
        assert relative_distance(ours["weights"], theirs["weights"]) < 1e-6
        assert ours["left"] == theirs["left"] and ours["called"] == theirs["called"] and ours["said"] == []
        for (when, own), (_, wanted) in zip(ours["seen"], theirs["seen"], strict=True):
            assert own == pytest.approx(wanted, rel=close), when
