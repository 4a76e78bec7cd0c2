"""Sums over several hosts go in two levels, where hosts have as many ranks; the result is one process's."""

import json

import numpy as np
import pytest

from keras_par.comm.ways import ranks_by_host
from tests import reduce_by_tasks
from tests.jobs import start
from tests.launcher import program


@pytest.mark.parametrize(
    ("ranks_of_first", "road", "sentence"),
    [
        (2, "two_levels", "in two levels, through the shared memory of each host and by Horovod over MPI between them"),
        (
            3,
            "horovod",
            "by Horovod over MPI (reduce_by='auto'; no shared memory, because the ranks are on several hosts)",
        ),
    ],
)
def test_hosts_sum_in_two_levels_where_they_have_as_many_ranks(ranks_of_first, road, sentence, plain, tmp_path):
    job = start("mpirun", 4, program("two_hosts"), str(ranks_of_first), str(tmp_path))
    assert job.status == 0, job.output
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [result["size"] for result in results] == [4] * 4
    [alone] = plain.run(reduce_by_tasks.alone, epochs=2)
    for result in results:
        assert result["roads"] == [road] and sentence in result["text"]
        for own, expected in zip(result["weights"], alone, strict=True):
            np.testing.assert_allclose(own, expected, rtol=1e-6, atol=1e-7)
    assert all(result["weights"] == results[0]["weights"] for result in results)


def test_ranks_are_told_by_their_hosts():
    assert ranks_by_host(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]
