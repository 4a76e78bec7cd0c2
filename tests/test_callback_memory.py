"""Callbacks that count and compare decide in a run that goes on as in one that was never interrupted."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import callback_memory_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure

STOPS = {"middle": (4, 3), "epoch end": (4, None), "first steps": (1, 4)}


@pytest.fixture(scope="module")
def whole(ranks, tmp_path_factory):
    """The results of 2 ranks that were not interrupted."""
    return ranks(2).run(tasks.fit, folder=str(tmp_path_factory.mktemp("whole")))


@pytest.fixture(scope="module")
def twin(plain):
    [result] = plain.run(tasks.fit, folder=None)
    return result


def test_the_training_has_something_to_remember(whole, twin):
    for result in whole:
        assert 4 < len(result["epochs"]) < 14, "nothing stopped it"
        waits = [[each["wait"] for each in seen if "wait" in each] for seen in result["seen"]]
        assert any(early > 0 for early, _ in waits[:-1])
        assert any(each.get("cooldown_counter") for seen in result["seen"] for each in seen)
        assert result["rate"] < 1.5
        assert relative_distance(result["weights"], twin["weights"]) < 1e-5
        assert result["epochs"] == twin["epochs"]


@pytest.mark.parametrize("stop", STOPS)
def test_on_as_many_ranks_it_decides_the_same_bit_by_bit(stop, whole, ranks, tmp_path):
    ranks(2).run(tasks.fit, folder=str(tmp_path), stop=STOPS[stop])
    results = ranks(2).run(tasks.fit, folder=str(tmp_path))
    assert len(results) == 2
    for rank, (ours, theirs) in enumerate(zip(results, whole, strict=True)):
        assert ours["from"] is not None and ours["warnings"] == []
        assert ours["epochs"] == theirs["epochs"][-len(ours["epochs"]) :]
        assert ours["decisions"] == theirs["decisions"]
        assert ours["rate"] == theirs["rate"]
        for mine, other in zip(ours["weights"], theirs["weights"], strict=True):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_equal(ours["tally"], theirs["tally"])
        assert ours["tally"]["rank"] == rank


@pytest.mark.parametrize("sizes", [(2, 1), pytest.param((1, 4), marks=pytest.mark.slow)])
def test_on_another_number_of_ranks(sizes, twin, ranks, tmp_path, exactness):
    before, after = sizes
    ranks(before).run(tasks.fit, folder=str(tmp_path), stop=STOPS["middle"])
    results = ranks(after).run(tasks.fit, folder=str(tmp_path))
    assert len(results) == after
    for result in results:
        assert result["epochs"] == twin["epochs"][-len(result["epochs"]) :]
        assert result["rate"] == pytest.approx(twin["rate"])
        assert result["tally"]["rank"] == 0
        assert result["tally"]["losses"] == pytest.approx(twin["tally"]["losses"], rel=1e-5)
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-5)


def test_a_run_that_a_callback_had_stopped_does_no_more(whole, ranks, tmp_path):
    """It was killed after the callback's decision, and before the best weights were restored."""
    last = len(whole[0]["epochs"])
    ranks(2).run(tasks.fit, folder=str(tmp_path), stop=(last, None), every="epoch")
    for ours, theirs in zip(ranks(2).run(tasks.fit, folder=str(tmp_path)), whole, strict=True):
        assert ours["epochs"] == []
        for mine, other in zip(ours["weights"], theirs["weights"], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_best_weights_are_arrays_and_written_once(ranks, tmp_path):
    ranks(2).run(tasks.fit, folder=str(tmp_path), epochs=2)
    first, second = (load_file(max(tmp_path.glob(f"rank.{rank}/*.safetensors"))) for rank in range(2))
    assert [first[f"callbacks/EarlyStopping 1/{number}"].shape for number in range(4)] == [
        (8, 16),
        (16,),
        (16, 3),
        (3,),
    ]
    assert len(first["callbacks/EarlyStopping 1"]) < 1000
    assert not [name for name in second if "EarlyStopping" in name]
    assert "callbacks/Tally 1" in second


def test_a_callback_that_the_checkpoint_does_not_know_is_told(ranks, tmp_path):
    ranks(2).run(tasks.fit, folder=str(tmp_path), epochs=2, without="EarlyStopping")
    first, second = ranks(2).run(tasks.fit, folder=str(tmp_path), epochs=3)
    [told] = first["warnings"]
    assert "CKP-2_2' does not know callback 'EarlyStopping 1', which begins anew" in told
    assert second["warnings"] == []


def test_a_state_that_cannot_be_saved_is_refused_on_all_ranks(ranks, tmp_path):
    results = ranks(2).attempt(tasks.fit, folder=str(tmp_path), epochs=2, unwilling=True)
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure)
        assert result.message == results[0].message
        assert (
            "what callback 'Unwilling 1' remembers cannot be saved (TypeError: it holds a Sequential)" in result.message
        )
