"""Autotune: finds what is fastest by the clock, changes no result, and what it found can be passed back."""

import re
import tomllib

import pytest

from keras_par.catalogue.strategy_file import Strategy, parse_strategy, strategy_text
from keras_par.plan.buckets import distinct_limits, fill_buckets
from keras_par.plan.tuning import MARGIN, ROUNDS, STEPS, fastest, num_steps, times
from tests import autotune_tasks
from tests.jobs import start


def run(settings, seconds) -> tuple[dict, list]:
    """The medians that `times` finds where the n-th step with a setting takes `seconds(setting, n)`, and the steps."""
    used: list = []
    in_force: list = []
    generator = times(settings, in_force.append)
    try:
        next(generator)
        while True:
            used.append(in_force[-1])
            generator.send(seconds(used[-1], len(used)))
    except StopIteration as end:
        return end.value, used


def test_settings_take_turns_and_each_change_is_left_out():
    medians, used = run("abc", lambda setting, n: 100.0 if n % STEPS == 1 else "cab".index(setting) + 1.0)
    assert medians == {"a": 2.0, "b": 3.0, "c": 1.0} and fastest(medians) == "c"
    assert used == [setting for _ in range(ROUNDS) for setting in "abc" for _ in range(STEPS)]
    assert len(used) == num_steps(3)


def test_a_drift_of_the_machine_does_not_decide():
    medians, _ = run("ab", lambda setting, n: (1.0 + 0.1 * (setting == "a")) * (1 + n / 100))
    assert fastest(medians) == "b"


@pytest.mark.parametrize(("gain", "best"), [(MARGIN / 2, "a"), (2 * MARGIN, "b")])
def test_a_gain_within_the_noise_changes_nothing(gain, best):
    assert fastest({"a": 1.0, "b": 1.0 - gain}) == best


def test_one_setting_is_put_into_force_without_a_step():
    assert run("a", lambda setting, n: 1.0) == ({}, [])
    assert num_steps(1) == 0


def test_sizes_that_group_tensors_alike_are_tried_once():
    num_bytes, kinds = [40, 4, 30, 4], ["f"] * 4
    limits = distinct_limits(num_bytes, kinds, [100, 90, 50, 10, 4, 1])
    assert limits == [100, 50, 10]
    assert len({str(fill_buckets(num_bytes, kinds, limit)) for limit in limits}) == 3


def test_the_file_is_a_strategy_with_the_same_options():
    options = {"fusion_mb": 4.0, "compression": "fp16", "auto_shard_dataset": False, "reduce_by": None}
    text = strategy_text(Strategy('a "name"', "What\nfor.", options={**options, "autotune": "x.toml"}))
    strategy = parse_strategy(text, "x.toml", "x")
    assert strategy.name == 'a "name"' and strategy.description == "What\nfor."
    assert strategy.options == {key: value for key, value in options.items() if value is not None}


@pytest.mark.long
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_first_steps_choose_the_buckets(size, ranks, tmp_path):
    path = tmp_path / "folder" / "tuned.toml"
    for result in ranks(size).run(autotune_tasks.tune, path=str(path)):
        assert result["size"] == size
        # The order in which more than two numbers are added up depends on where they are in a message.
        assert result["distance"] <= (0 if size == 2 else 1e-5)
        found = {name: result[name] for name in ("tuned", "again", "loaded", "later")}
        assert all(round(value, 4) == autotune_tasks.SIZES[1] for value in found.values()), found
        assert result["is_over"] and result["again_is_over"]
        assert result["num_collectives"] == 2
    content = tomllib.loads(path.read_text())
    assert re.match(rf"Tuned for {size} ranks over mpi", content["description"])
    assert content["options"]["fusion_mb"] == autotune_tasks.SIZES[1]


@pytest.mark.long
def test_buckets_are_chosen_over_gloo(tmp_path):
    path = tmp_path / "tuned.toml"
    ended = start("horovodrun --gloo", 2, "-m", "tests.autotune_tasks", str(path), KERAS_PAR_SHARED_MEMORY="0")
    assert ended.status == 0, ended.output
    results = ended.find(r"\[\d, 2, 0\.0005, 0\.0\]")
    assert len(results) == 2, ended.output
    for sentence in ("autotune tries fusion_mb 1, 0.0005, 0.0002", "autotune chooses fusion_mb=0.0005", "has written"):
        assert ended.output.count(sentence) == 1, ended.output
    assert tomllib.loads(path.read_text())["options"]["fusion_mb"] == 0.0005
