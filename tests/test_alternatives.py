"""What a search says about other layouts is what a search that may only use these would find."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import alternative_tasks
from tests.test_search import KNOWN, divided_models


@pytest.mark.parametrize(
    ("name", "mesh", "memory"),
    [
        ("two_layers", (1, 4), None),
        ("two_layers", (2, 2), None),
        ("softmax_of_vocabulary", (2, 2), 0.95),
        ("gpt", (1, 2), None),
    ],
)
def test_the_next_best_layout_is_the_best_where_it_is_said(name, mesh, memory, ranks):
    [rows] = ranks(1).run(
        alternative_tasks.compare_named,
        name=name,
        num_ranks=mesh[0] * mesh[1],
        mesh=mesh,
        memory=memory,
        machine=KNOWN.text(),
    )
    assert 3 <= len(rows) <= 12
    assert all(row["is_free"] for row in rows)
    for row in rows:
        assert row["fits"] == bool(row["others"])
        if row["fits"]:
            assert row["seconds"] == pytest.approx(min(row["others"]), rel=1e-6), row["pattern"]
            assert row["seconds"] >= row["best"] * (1 - 1e-9)


@pytest.mark.long
@given(divided_models(), st.sampled_from(["dynamic", "recursive", "exact"]), st.floats(0.6, 1.2))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_any_plan_has_other_layouts(ranks, drawn, search, share):
    kind, parts, _, _ = drawn
    [found] = ranks(1).run(
        alternative_tasks.of_drawn, kind=kind, parts=parts, search=search, share=share, machine=KNOWN.text()
    )
    assert 0 < len(found["alternatives"]) <= 12
    for each in found["alternatives"]:
        assert each["is_other"]
        if each["fits"]:
            assert each["seconds"] >= found["seconds"] * (1 - 1e-6)
