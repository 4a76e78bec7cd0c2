"""A run that takes longer than its budget fails, and says so; few tests that take all branches are found."""

from collections import Counter
from types import SimpleNamespace

import pytest

from tests import branches
from tests.budget import Budget


@pytest.mark.parametrize(
    ("limit", "yardsticks", "status"),
    [(1, [1e-9], 1), (10**6, [100.0, 1e-9, 100.0], 0), (None, [1e-9], 0), (1, [], 0)],
)
def test_a_run_past_its_budget_fails(limit, yardsticks, status):
    budget, session, lines = Budget(limit), SimpleNamespace(exitstatus=0), []
    budget.yardsticks += yardsticks
    budget.pytest_sessionfinish(session)
    budget.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert session.exitstatus == status
    assert len(lines) == bool(yardsticks) and sum("TOO LONG" in line for line in lines) == status


def test_a_yardstick_is_timed_once_in_a_while():
    budget, pool = Budget(None), SimpleNamespace(run=lambda task: [0.5])
    budget.time(pool)
    budget.time(pool)
    assert budget.yardsticks == [0.5]


def test_few_tests_that_take_all_branches_are_found():
    taken = {"a": {1, 2, 3}, "b": {3, 4}, "c": {4}, "d": {1}, "never timed": {5}}
    assert branches.enough(taken, Counter(a=1, b=5, c=1, d=1)) == ["a", "c"]
    assert branches.test_of("a file (call)|tests/test_x.py::test[of (this)]") == "tests/test_x.py::test[of (this)]"
    assert branches.test_of("tests/test_x.py::test[of (this)] (setup)") == "tests/test_x.py::test[of (this)]"
