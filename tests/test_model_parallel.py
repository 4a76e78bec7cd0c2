"""Model parallelism gives what one process gives, whatever is divided over whatever mesh."""

import pytest

from tests import layout_tasks
from tests.compare import log_distance, relative_distance
from tests.layout_cases import LAYOUT_CASES

TOLERANCE = 1e-5
MESHES = [(1, 2), (2, 1), (2, 2), (1, 4)]


@pytest.mark.parametrize("name", LAYOUT_CASES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("mesh", MESHES, ids="x".join)
def test_a_mesh_ends_where_one_process_ends(name, optimizer, mesh, ranks, plain, exactness):
    [twin] = plain.run(layout_tasks.train_plain, name=name, optimizer=optimizer)
    results = ranks(mesh[0] * mesh[1]).run(layout_tasks.train_divided, name=name, optimizer=optimizer, mesh=mesh)
    assert [result["rank"] for result in results] == list(range(mesh[0] * mesh[1]))
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), TOLERANCE)
        exactness(relative_distance([result["predictions"]], [twin["predictions"]]), TOLERANCE)
        assert log_distance(result["logs"], twin["logs"]) < 2e-5
        assert result["evaluated"] == pytest.approx(twin["evaluated"], rel=2e-5)
