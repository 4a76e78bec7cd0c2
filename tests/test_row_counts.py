"""A number of rows, of which a step knows that it is one, is taken as the integer that it is in one process."""

import pytest

from tests import row_count_tasks

QUICK = "add arange divide eye floor_divide full linspace maximum minimum mod multiply one_hot power stack subtract"
QUICK += " take where zeros"


@pytest.mark.parametrize("in_graph", [False, True])
def test_common_functions_take_a_number_of_rows(in_graph, ranks):
    count, found = ranks(2).run(
        row_count_tasks.differences, module="keras.ops", in_graph=in_graph, names=tuple(QUICK.split())
    )[0]
    assert count > 100
    assert found == []


@pytest.mark.long
@pytest.mark.parametrize(
    "module", [pytest.param("keras.ops", marks=pytest.mark.slow), "tensorflow", "tensorflow.math", "numpy"]
)
def test_functions_take_a_number_of_rows_in_any_place(module, ranks):
    count, found = ranks(2).run(row_count_tasks.differences, module=module, in_graph=False)[0]
    assert count > 300
    assert found == []


def test_python_takes_a_number_of_rows(ranks):
    for results in ranks(2).run(row_count_tasks.as_python):
        assert len(results) > 10
        for name, ours, theirs in results:
            assert ours == theirs, name
