"""What goes between two hosts is what the formulas say; the hosts are network namespaces with a cable between."""

import os
from types import SimpleNamespace

import pytest

from benchmarks import hosts


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_a_host_sends_what_the_formulas_say():
    figures = hosts.launch(SimpleNamespace(rounds=1, steps=3, megabits=None))
    assert [row["way"] for row in figures] == list(hosts.WAYS)
    for row in figures:
        times = row["bytes"] / row["weights"]
        assert row["expected"] <= times <= 1.03 * row["expected"], row
