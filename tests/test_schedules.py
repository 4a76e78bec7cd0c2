"""Warm-up and scaling of learning rates: their values, in an optimizer, on ranks, saved and loaded."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_par.schedules import WarmUp, scaled
from tests import schedule_tasks as tasks
from tests.compare import relative_distance


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": 0.8}, [0.0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
        ({"target": 0.1, "start": 0.5}, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1]),
    ],
    ids=["up from zero", "down"],
)
def test_the_rate_goes_in_a_line_and_stays(options, expected, in_graph):
    schedule = WarmUp(warmup_steps=4, **options)
    call = tf.function(schedule) if in_graph else schedule
    found = [float(call(tf.constant(step, tf.int64))) for step in [0, 1, 2, 3, 4, 5, 100]]
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_ramp_meets_a_schedule_that_counts_from_the_first_step():
    cosine = keras.optimizers.schedules.CosineDecay(0.2, 10)
    steps = [0, 1, 2, 3, 4, 5, 9, 10, 11]
    warm, alone = ([float(schedule(step)) for step in steps] for schedule in (WarmUp(cosine, 4, start=0.02), cosine))
    meeting = 0.1 * (1 + math.cos(math.pi * 4 / 10))
    assert warm[:4] == pytest.approx([0.02 + (meeting - 0.02) * step / 4 for step in range(4)], rel=1e-6)
    assert warm[4:] == alone[4:]
    assert alone[4] == pytest.approx(meeting, rel=1e-6)


def test_an_optimizer_in_a_graph_asks_at_each_step():
    weight = keras.Variable([0.0], dtype="float32")
    optimizer = keras.optimizers.SGD(WarmUp(0.5, 4, start=0.1))
    optimizer.build([weight])
    step = tf.function(lambda: optimizer.apply([tf.constant([-1.0])]))
    seen = [0.0]
    for _ in range(6):
        step()
        seen.append(float(weight.value[0]))
    assert np.diff(seen) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5], rel=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_rates_grow_with_the_ranks_or_with_their_square_root_or_as_is_said(size, ranks):
    results = ranks(size).run(tasks.scaled_rates, options=[{}, {"rule": "sqrt"}, {"rule": "sqrt", "size": 16}])
    assert len(results) == size
    for found in results:
        for values, factor in zip(found, (size, math.sqrt(size), 4), strict=True):
            assert values == pytest.approx([0.1 * factor, 0.1 * factor, 0.05 * factor], rel=1e-6)


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
    ("call", "sentence"),
    [
        (lambda: WarmUp(0.1, 0), "WarmUp(warmup_steps=0) must be at least 1 step."),
        (lambda: scaled(0.1, rule="cubic"), "schedules.scaled(rule='cubic') is unknown, use 'linear' or 'sqrt'."),
        (lambda: scaled(0.1, size=0), "schedules.scaled(size=0) must be at least 1 rank."),
        (lambda: WarmUp("0.1", 5), "WarmUp(target='0.1') must be a number or a Keras LearningRateSchedule."),
    ],
    ids=["no steps", "rule", "size", "target"],
)
def test_arguments_that_cannot_be_are_refused(call, sentence):
    with pytest.raises(ValueError) as refused:
        call()
    assert str(refused.value) == f"keras-par: {sentence}"
