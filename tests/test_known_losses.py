"""Losses that the trace of an own step tells to be Keras's need no look at a batch; others are looked at, once."""

import pytest

from tests import known_losses_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import together

KNOWN = ("computed", "an_object", "several", "one_of_whole_batches", "regularized", "deep")
LOOKED_AT = ("a_sum", "a_sum_of_keras_s", "a_mean")


@pytest.mark.parametrize(
    ("kind", "in_function"),
    [*((kind, False) for kind in (*KNOWN, *LOOKED_AT)), *((kind, "step") for kind in ("computed", "a_sum", "a_mean"))],
)
def test_a_batch_is_looked_at_where_losses_are_not_known(kind, in_function, ranks, plain, exactness):
    [theirs], (first, second) = together(
        plain.begin(tasks.train, kind=kind, distributed=False, in_function=in_function),
        ranks(2).begin(tasks.train, kind=kind, distributed=True, in_function=in_function),
    )
    is_looked_at = kind in LOOKED_AT or in_function == "step"  # what logs are is not followed into a function
    assert (first["looks"], second["looks"]) == (int(is_looked_at), 0)
    assert first["said"] == []
    if not is_looked_at:
        assert first["traces"] == second["traces"] == theirs["traces"]
    exactness(relative_distance(first["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("kind", ["computed", "a_sum", "a_branch", "regularized"])
def test_a_look_leaves_the_functions_that_a_step_calls_alone(kind, ranks, plain, exactness):
    """They are kept when they are traced, so that the step would run what the look has made of them."""
    [theirs], results = together(
        plain.begin(tasks.train, kind=kind, distributed=False, in_function=True),
        ranks(2).begin(tasks.train, kind=kind, distributed=True, in_function=True),
    )
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("kind", ["computed", "a_sum", "a_mean", "a_reduced_sum"])
def test_a_function_that_was_traced_for_means_is_traced_anew_for_sums(kind, ranks, plain, exactness):
    [theirs], results = together(
        plain.begin(tasks.train, kind=kind, distributed=False, in_function="loss"),
        ranks(2).begin(tasks.train, kind=kind, distributed=True, in_function="loss"),
    )
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-6)
        exactness(relative_distance([ours["tracked"]], [theirs["tracked"]]), 1e-6)


@pytest.mark.parametrize("custom_loss", ["auto", "as it is"])
@pytest.mark.parametrize("kind", [*KNOWN[:3], "a_mean", "a_sum"])
def test_where_variables_are_divided_it_is_said_that_nobody_looks(kind, custom_loss, ranks, plain, exactness):
    said = "sum" if kind == "a_sum" else "mean"
    options = {"zero": 3, "zero_min_kb": 0, "custom_loss": "auto" if custom_loss == "auto" else said}
    [theirs], (first, second) = together(
        plain.begin(tasks.train, kind=kind, distributed=False),
        ranks(2).begin(tasks.train, kind=kind, distributed=True, options=options),
    )
    assert (first["looks"], second["looks"], second["logged"]) == (0, 0, [])
    assert len(first["logged"]) == int(kind in LOOKED_AT and custom_loss == "auto")
    if kind != "a_sum" or custom_loss != "auto":
        exactness(relative_distance(first["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("kind", ["a_mean", "a_sum", "computed"])
def test_a_function_may_make_the_state_of_an_optimizer_of_its_own(kind, ranks, plain, exactness):
    [theirs], results = together(
        plain.begin(tasks.train, kind=kind, distributed=False, in_function="whole"),
        ranks(2).begin(tasks.train, kind=kind, distributed=True, in_function="whole"),
    )
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-6)


@pytest.mark.parametrize("compiled", [{"steps_per_execution": 3}, {"run_eagerly": True}], ids=str)
@pytest.mark.parametrize("num_rows", [24, 23, 17])
@pytest.mark.parametrize("kind", ["computed", "a_sum"])
def test_losses_are_found_to_be_what_they_are_however_steps_run(kind, num_rows, compiled, ranks, plain, exactness):
    how = {"kind": kind, "num_rows": num_rows, **compiled}
    [theirs], results = together(
        plain.begin(tasks.train, distributed=False, **how), ranks(2).begin(tasks.train, distributed=True, **how)
    )
    for ours in results:
        exactness(relative_distance(ours["weights"], theirs["weights"]), 1e-6)


def test_a_step_that_was_repaired_is_looked_at(ranks, plain, exactness):
    [theirs], results = together(
        plain.begin(tasks.train_repaired, distributed=False), ranks(2).begin(tasks.train_repaired, distributed=True)
    )
    for ours in results:
        exactness(relative_distance(ours, theirs), 1e-6)


def test_a_constant_that_a_layer_adds_is_known(ranks, plain, exactness):
    [theirs], results = together(
        plain.begin(tasks.train_with_constant, distributed=False),
        ranks(2).begin(tasks.train_with_constant, distributed=True),
    )
    for ours in results:
        exactness(relative_distance([ours], [theirs]), 1e-6)


@pytest.mark.parametrize(
    "kind",
    [
        *("partly_a_sum", "a_square", "a_product", "a_share", "a_mean_by_hand", "a_sum_by_hand"),
        "a_sum_by_a_static_number",
    ],
)
def test_what_is_made_of_keras_s_losses_but_is_no_sum_of_them_is_told(kind, ranks):
    first, _ = ranks(2).run(tasks.train, kind=kind, distributed=True)
    assert first["looks"] == 1 and len(first["said"]) == 1
    assert "neither a mean nor a sum over rows" in first["said"][0]
