"""Training steps of users' own end on N ranks where they end in one process, whatever they do to gradients."""

import pytest

from tests import step_tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together
from tests.script_cases import STEPS

QUICK_ON_4 = ("normalized-thin", "meta-learning", "sum-beside-means", "penalty-through-batchnorm")


def runs() -> list:
    """Each case on 2 ranks, some on 4, where they have all kinds of row counts."""
    assert set(QUICK_ON_4) <= set(STEPS)
    return [(2, name) for name in STEPS] + [
        pytest.param(4, name, marks=[pytest.mark.slow] * (name not in QUICK_ON_4)) for name in STEPS
    ]


@pytest.mark.parametrize(("size", "name"), runs())
def test_steps_of_ones_own_end_where_one_process_ends(name, size, ranks, plain, exactness):
    [twin], results = together(
        plain.begin(step_tasks.train, name=name, distributed=False),
        ranks(size).begin(step_tasks.train, name=name, distributed=True),
    )
    for result in results:
        assert result["size"] == size
        exactness(relative_distance(result["weights"], twin["weights"]), STEPS[name].tolerance)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        assert result["warnings"] == []


@pytest.mark.parametrize(
    ("kind", "said"), [("mixed", "of losses of rows and of means over rows at once"), ("loop", "within a loop")]
)
def test_gradients_that_cannot_be_made_right_where_they_are_taken_are_told_of(kind, said, ranks):
    for found in ranks(2).run(step_tasks.complaint, kind=kind):
        assert len(found) == 1 and said in found[0], found


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("mean", {}, None),
        ("vector", {}, None),
        ("mean-dropout", {}, None),
        ("sum", {}, None),
        ("sum-dropout", {}, None),
        ("add-loss", {}, None),
        ("sum", {"custom_loss": "mean"}, 'custom_loss="sum"'),
        ("sum-dropout", {"custom_loss": "mean"}, 'custom_loss="sum"'),
        ("add-loss", {"custom_loss": "mean"}, 'custom_loss="sum"'),
        ("sum", {"custom_loss": "sum"}, None),
        ("add-loss", {"custom_loss": "sum"}, None),
        ("mean", {"custom_loss": "sum"}, 'custom_loss="mean"'),
        ("across", {}, "kp.ops.all_gather"),
        ("gathered", {}, None),
    ],
)
def test_losses_that_are_taken_for_what_they_are_not_are_told_of_once(kind, options, said, ranks):
    first, second = ranks(2).run(step_tasks.looked_at, kind=kind, **options)
    assert second == []
    assert len(first) == (said is not None), first
    assert said is None or said in first[0], first


def test_a_half_without_a_loss_tells_no_sum_from_a_mean(ranks):
    """As a hinge's, which random numbers bring near to a sum."""
    losses = [(0.118005, 0.0, 0.119118), (2.1, 1.0, 1.0), (1.02, 1.0, 1.0)]
    assert ranks(1).run(step_tasks.judge, losses=losses) == [[None, "sum", "mean"]]
