"""One operation is divided by the user; what follows from it is divided by itself, and the result is one process's."""

import inspect
import re

import numpy as np
import pytest

from tests import following_tasks as tasks
from tests.ranks.pool import together


def assert_same(found: dict, alone: dict) -> None:
    for own, expected in zip(found["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["predicted"], alone["predicted"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["evaluated"], alone["evaluated"], rtol=1e-5)
    for name, values in alone["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-5)


@pytest.mark.parametrize("case", tasks.CASES)
def test_what_follows_is_divided_and_trains_as_one_process(case, ranks, plain):
    [alone] = plain.run(tasks.alone, case=case)
    said, follows = tasks.CASES[case]
    for found in ranks(2).run(tasks.follow, case=case, mesh=(1, 2)):
        assert found["size"] == 2
        assert_same(found, alone)
        own = {path: axes for path, axes in found["axes"].items() if not any(re.fullmatch(p, path) for p in said)}
        assert follows.items() <= own.items(), own
        assert case != "said" or "second/kernel" not in own
        assert ("(follows)" in found["text"]) == bool(own)


def test_rows_that_the_batch_axis_divides_are_shown(ranks, plain):
    [alone], results = together(
        plain.begin(tasks.alone, case="rows"), ranks(4).begin(tasks.follow, case="rows", mesh=(2, 2))
    )
    for found in results:
        assert found["size"] == 4
        assert_same(found, alone)
        assert ["relu", (4, 8), ("batch", "model"), (2, 4)] in [list(row) for row in found["outputs"]]
        assert "(batch, model) (inferred)" in found["text"]


def test_layers_keep_their_own_parameters(ranks):
    assert ranks(2).run(tasks.layers_without_init) == [[["Plain", "given"], ["Made", 3]]] * 2


def test_the_source_is_the_users_line(ranks):
    lines, first = inspect.getsourcelines(tasks)
    made = next(number for number, line in enumerate(lines, first or 1) if 'name="second")(x)' in line and "4" in line)
    fits = next(number for number, line in enumerate(lines, first or 1) if "model.fit(" in line)
    for found in ranks(2).run(tasks.follow, case="columns", mesh=(1, 2)):
        assert found["sources"]["second"] == f"following_tasks.py:{made}"
    for found in ranks(4).run(tasks.follow, case="columns", mesh=(2, 2)):
        assert found["sources"]["sgd"] == f"following_tasks.py:{fits}"
