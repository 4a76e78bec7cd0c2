"""Keras's operations take what ranks divide, whether they have a rule or not."""

from tests import operation_tasks


def test_operations_without_a_rule_give_what_they_give_with_whole_tensors(ranks):
    for result in ranks(2).run(operation_tasks.differences):
        assert result["size"] == 2
        assert result["differ"] == {}
        assert result["tried"] > 150
        assert result["failed"] < 15  # functions that take no variables
        assert result["sent"] > result["tried"]  # for most functions, of the tensor and of the variable
