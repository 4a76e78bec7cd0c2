"""Parts of an element that do not have the batch's rows are given to all ranks whole, or refused in one sentence."""

import numpy as np
import pytest

from tests import table_tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import together

QUICK = {("known", "table"), ("unknown", "large"), ("known", "scalar"), ("generator", "table")}
CELLS = [(feed, table) for feed in table_tasks.FEEDS for table in table_tasks.TABLES]
CELLS = [cell for cell in CELLS if cell[1] != "scalar" or cell[0] in ("known", "even", "unknown")]  # Keras refuses it


@pytest.mark.parametrize(
    ("feed", "table"), [pytest.param(*cell, marks=[pytest.mark.long] * (cell not in QUICK)) for cell in CELLS]
)
def test_a_table_beside_the_rows_stays_whole(feed, table, ranks, plain, exactness):
    check(2, feed, table, ranks, plain, exactness)


@pytest.mark.long
@pytest.mark.parametrize("feed", ["even", "unknown"])
@pytest.mark.parametrize("eagerly", [False, True])
def test_on_three_ranks(feed, eagerly, ranks, plain, exactness):
    check(3, feed, "table", ranks, plain, exactness, eagerly=eagerly)


def check(size, feed, table, ranks, plain, exactness, **options):
    [twin], results = together(
        plain.begin(table_tasks.train, feed=feed, table=table, distributed=False, **options),
        ranks(size).begin(table_tasks.train, feed=feed, table=table, distributed=True, **options),
    )
    for result in results:
        assert result["size"] == size
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-12)
        assert log_distance(result["logs"], twin["logs"]) < 1e-12
        for key in ("evaluate", "predict"):
            np.testing.assert_allclose(result[key], twin[key], rtol=1e-11, err_msg=key)
        for ours, theirs in zip(result["on a batch"], twin["on a batch"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-11)


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("no targets", "which of them counts the rows of the batch is not clear"),
        ("no targets, known", "which of them counts the rows of the batch is not clear"),
        ("targets", "which of them counts the rows of the batch is not clear"),
        ("at first as many", "so that it was cut as rows and may be none"),
        ("scalars", "so it is not batched"),
    ],
)
def test_what_is_not_clear_is_refused_alike_on_all_ranks(which, said, ranks):
    first, second = ranks(2).run(table_tasks.refused, which=which)
    assert first == second
    assert first.startswith("keras-par: ") and said in first and "\n" not in first
