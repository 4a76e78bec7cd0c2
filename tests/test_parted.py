"""Ranks whose weights part, or that were compiled to part, are told so, with the variable or the setting."""

import numpy as np
import pytest

from tests import parted_tasks
from tests.ranks.pool import Failure

SETTINGS = {
    "optimizer's beta": "optimizer.beta_1 is 0.9 on rank 0 but 0.8 on rank 1",
    "optimizer's clipping": "optimizer.clipnorm is 1.0 on rank 0 but 2.0 on rank 1",
    "optimizer's decay": "optimizer.weight_decay is 0.1 on rank 0 but 0.2 on rank 1",
    "optimizer's kind": "optimizer is 'SGD' on rank 0 but 'Adam' on rank 1",
    "schedule": "optimizer.learning_rate.decay_steps is 100 on rank 0 but 101 on rank 1",
    "inner optimizer": "optimizer.inner_optimizer.momentum is 0.0 on rank 0 but 0.1 on rank 1",
    "loss": "loss is 'SparseCategoricalCrossentropy' on rank 0 but 'mse' on rank 1",
    "loss's option": "loss.reduction is 'sum' on rank 0 but 'mean' on rank 1",
    "loss weights": "loss_weights is [1.0] on rank 0 but [2.0] on rank 1",
    "function": "<lambda>",
    "constant": "<lambda>",
}


def refused(results: list, kind: str) -> str:
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure) and result.kind == kind, result
        assert result.message.startswith("keras-par: ") and "\n" not in result.message
    assert results[0].message == results[1].message
    return results[0].message


@pytest.mark.long
@pytest.mark.parametrize("which", parted_tasks.COMPILED)
def test_models_that_are_compiled_otherwise_are_refused(which, ranks):
    message = refused(ranks(2).attempt(parted_tasks.compile_otherwise, which=which), "AgreedValueError")
    assert SETTINGS[which] in message and "the ranks compiled model 'sequential" in message


@pytest.mark.parametrize("which", ["class weight", "shuffle"])
def test_other_arguments_of_fit_are_refused(which, ranks):
    message = refused(ranks(2).attempt(parted_tasks.fit_otherwise, which=which), "AgreedValueError")
    assert f"'{which.replace(' ', '_')}' is" in message


def test_names_and_rates_may_differ(ranks):
    assert ranks(2).run(parted_tasks.compile_alike) == [2, 2]


@pytest.mark.parametrize("which", ["step", "callback", "last callback", "no broadcast"])
def test_parted_weights_are_an_error_that_names_the_variable(which, ranks):
    message = refused(ranks(2).attempt(parted_tasks.part, which=which), "AgreedRuntimeError")
    name = "dense_1/kernel'" if which == "step" else "dense/bias'"
    assert f"{name} of model" in message and "is not the same on rank 1 as on rank 0" in message


def test_ranks_may_begin_apart_where_the_strategy_lets_them(ranks):
    own, first = ranks(2).run(parted_tasks.begin_apart)
    assert not np.array_equal(own[0], first[0])


def test_weights_that_are_no_numbers_have_not_parted(ranks):
    results = ranks(2).run(parted_tasks.train_into_nan)
    assert len(results) == 2 and all(np.isnan(weights[0]).all() for weights in results)


@pytest.mark.parametrize(("num_small", "epochs"), [(20, 1), (20, 50), (1, 50)])
def test_each_number_is_looked_at_in_turn_and_all_at_the_end(num_small, epochs, ranks):
    """An epoch's end looks at 32 of the variables, and at an eighth of the large one, whose last number has changed."""
    for found in ranks(2).run(parted_tasks.part_in_one_number, num_small=num_small, epochs=epochs):
        assert found["size"] == 2 and found["variables"] == 2 * num_small + 2
        assert "dense" in found["said"] and "kernel' of model" in found["said"] and "have parted" in found["said"]
        assert found["epochs"] == 1 if epochs == 1 else 1 < found["epochs"] <= 8 * (1 + num_small // 16)
