"""A run that takes longer than its budget fails, and says so; one without a budget or a yardstick does not."""

from types import SimpleNamespace

import pytest

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
