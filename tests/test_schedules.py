"""Warm-up and scaling of learning rates: their values, in an optimizer, on ranks, saved and loaded."""

import math

import numpy as np
import pytest

from tests import schedule_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_the_rate_climbs_in_a_line_and_stays(in_graph, ranks):
    arguments = {"steps": [0, 1, 2, 3, 4, 5, 100], "in_graph": in_graph}
    [from_zero] = ranks(1).run(tasks.rates, warm_up={"target": 0.8, "warmup_steps": 4}, **arguments)
    assert from_zero == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8], rel=1e-6)
    [down] = ranks(1).run(tasks.rates, warm_up={"target": 0.1, "warmup_steps": 4, "start": 0.5}, **arguments)
    assert down == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1], rel=1e-6)


def test_the_ramp_meets_a_schedule_that_counts_from_the_first_step(ranks):
    steps = [0, 1, 2, 3, 4, 5, 9, 10, 11]
    [values] = ranks(1).run(tasks.decayed, steps=steps)
    warm, alone = values[: len(steps)], values[len(steps) :]
    meeting = 0.1 * (1 + math.cos(math.pi * 4 / 10))
    assert warm[:4] == pytest.approx([0.02 + (meeting - 0.02) * step / 4 for step in range(4)], rel=1e-6)
    assert warm[4:] == alone[4:]
    assert alone[4] == pytest.approx(meeting, rel=1e-6)


def test_an_optimizer_in_a_graph_asks_at_each_step(ranks):
    [moves] = ranks(1).run(tasks.rates_applied)
    assert moves == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5], rel=1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rates_grow_with_the_ranks_or_with_their_square_root(size, ranks):
    results = ranks(size).run(tasks.scaled_rates)
    assert len(results) == size
    for values in results:
        assert values == pytest.approx([0.1 * size, 0.1 * size, 0.05 * size], rel=1e-6)
    root = math.sqrt(size)
    for values in ranks(size).run(tasks.scaled_rates, rule="sqrt"):
        assert values == pytest.approx([0.1 * root, 0.1 * root, 0.05 * root], rel=1e-6)


def test_a_size_can_be_given(ranks):
    for values in ranks(2).run(tasks.scaled_rates, rule="sqrt", size=16):
        assert values == pytest.approx([0.4, 0.4, 0.2], rel=1e-6)


def test_ranks_with_a_schedule_end_where_plain_keras_with_its_rates_ends(ranks, plain, exactness):
    [oracle] = plain.run(tasks.train_scheduled, distributed=False, size=2)
    [unscaled] = plain.run(tasks.train_scheduled, distributed=False, size=1)
    assert relative_distance(unscaled["weights"], oracle["weights"]) > 1e-2
    for result in ranks(2).run(tasks.train_scheduled, distributed=True, size=2):
        exactness(relative_distance(result["weights"], oracle["weights"]), 1e-6)
        assert result["rate"] == pytest.approx(tasks.rate(20, 2), rel=1e-6)


def test_a_saved_model_goes_on_at_its_rate(ranks, tmp_path):
    factor = math.sqrt(2)
    meeting = 0.1 * factor * 0.5**0.6
    for result in ranks(2).run(tasks.saved_and_loaded, path=str(tmp_path / "model.keras")):
        assert result["rate"] == pytest.approx(0.03 + (meeting - 0.03) * 4 / 6, rel=1e-6)
        assert result["config"]
        for a, b in zip(result["model"], result["loaded"], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("no steps", "keras-par: WarmUp(warmup_steps=0) must be at least 1 step."),
        ("rule", "keras-par: schedules.scaled(rule='cubic') is unknown, use 'linear' or 'sqrt'."),
        ("size", "keras-par: schedules.scaled(size=0) must be at least 1 rank."),
        ("target", "keras-par: WarmUp(target='0.1') must be a number or a Keras LearningRateSchedule."),
    ],
)
def test_arguments_that_cannot_be_are_refused(which, sentence, ranks):
    [result] = ranks(1).attempt(tasks.refused, which=which)
    assert isinstance(result, Failure)
    assert (result.kind, result.message) == ("ValueError", sentence)
