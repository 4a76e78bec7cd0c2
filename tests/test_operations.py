"""Keras's operations take what ranks divide, whether they have a rule or not."""

import pytest

from tests import operation_tasks
from tests.patience import PATIENCE


@pytest.mark.long
@pytest.mark.parametrize("in_turns", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_operations_without_a_rule_give_what_they_give_with_whole_tensors(in_turns, ranks):
    """Of each function two calls in turns, eagerly and in a graph, or all four; and gradients."""
    results = ranks(2).run(operation_tasks.differences, 2 * PATIENCE, in_turns=in_turns)
    assert [result["size"] for result in results] == [2, 2]
    for result in results:
        assert result["differ"] == {}
        assert result["tried"] > 150
        num_calls = result["tried"] * (2 if in_turns else 4)
        # Plain Keras fails with some variables, and in graphs; each function works with a tensor, eagerly.
        assert len(result["failed"]) < num_calls / 13
        assert not [what for what in result["failed"] if what.endswith("a tensor, by call")]
        assert result["sent"] > 0.75 * num_calls  # most of them
        assert result["derived"] > 95


@pytest.mark.long
@pytest.mark.parametrize("axes", [(None, "model"), pytest.param(("model", None), marks=pytest.mark.slow)])
def test_operations_with_a_rule_give_what_they_give_with_whole_tensors(axes, ranks):
    """Also along other dims, and along all; and gradients."""
    results = ranks(2).run(operation_tasks.differences, 2 * PATIENCE, in_turns=True, with_rule=True, axes=axes)
    assert [result["size"] for result in results] == [2, 2]
    for result in results:
        assert result["differ"] == {}
        assert result["tried"] > 330 and result["compared"] > 500 and result["derived"] > 190


@pytest.mark.long
@pytest.mark.parametrize("axes", [(None, "model"), pytest.param(("model", None), marks=pytest.mark.slow)])
def test_operations_with_a_rule_send_what_a_search_counts(axes, ranks):
    """Also their gradients; argmax, which has none and is in metrics only, is counted as a gather of all."""
    [found] = ranks(1).run(operation_tasks.unplanned, 2 * PATIENCE, axes=axes)
    assert {name: both for name, both in found["differ"].items() if not name.startswith("numpy.argmax")} == {}
    assert found["tried"] > 250


@pytest.mark.parametrize(("num_rows", "dtype"), [(3, "float32"), (3, "float16"), (0, "float32")])
def test_picking_a_label_s_logit_has_the_gradients_of_tensorflow_s_gather(num_rows, dtype, ranks):
    """The first and the second ones, of any number of rows, without a sum over segments."""
    [result] = ranks(1).run(operation_tasks.picked, num_rows=num_rows, dtype=dtype)
    for ours, tensorflow_s in zip(result["ours"], result["tensorflow's"], strict=True):
        assert ours.tolist() == tensorflow_s.tolist() and ours.any() == bool(num_rows)
    assert "UnsortedSegmentSum" in result["kinds"]["tensorflow's"]
    assert "UnsortedSegmentSum" not in result["kinds"]["ours"]
