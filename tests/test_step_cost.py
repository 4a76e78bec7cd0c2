"""Guards what a step costs by counting, where timing cannot: traces, operations, what waits for Python or the host."""

from collections import Counter

import numpy as np
import pytest

from tests import step_cost_tasks
from tests.ranks.pool import together

pytestmark = pytest.mark.grappler  # which merges, moves and leaves out operations
MOST_OPERATIONS_MORE = 11  # than plain Keras's step: the rows' share, a weighted loss, and the reduction
WAITING = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "Print", "PrintV2", "StringFormat")


@pytest.mark.parametrize(("size", "collective"), [(2, "KerasParSharedAllReduce"), (3, "HorovodGroupedAllreduce")])
def test_a_step_is_traced_once_and_adds_one_collective_to_few_operations(size, collective, ranks, plain):
    [twin] = plain.run(step_cost_tasks.train_plain)
    assert twin["num_traces"] == 1 and twin["on_host"] == []
    for result in ranks(size).run(step_cost_tasks.train_distributed):
        assert result["size"] == size
        assert result["num_traces"] == 1  # for three calls of fit of two epochs each
        assert result["iterations"] == twin["iterations"] == 5 * step_cost_tasks.NUM_STEPS
        assert result["num_cut"] == 6  # iterators that cut batches: one an epoch, since each takes some 20 ms to make
        assert result["bytes"] == result["bytes_of_gradients"]
        assert result["reads_of_steps"] <= 0  # plain Keras asks after each step whether it had data
        # The collective, unless NCCL sums, and the order of those through shared memory.
        assert set(result["on_host"]) <= {collective, "Placeholder", "Const"}
        more = Counter(result["operations"]) - Counter(twin["operations"])
        collectives = {kind: count for kind, count in more.items() if kind.startswith(("Horovod", "KerasPar"))}
        assert collectives == {collective: 1}
        assert more.total() <= MOST_OPERATIONS_MORE, more
        assert not set(WAITING) & set(result["operations"])


SHARED = (["KerasParSharedAllGather", "KerasParSharedAllReduce"], ["all_reduce", "all_gather"])
HOROVOD = (["HorovodAllgather", "HorovodAllgather", "HorovodAllreduce"], ["all_reduce", "all_gather", "all_gather"])


@pytest.mark.parametrize(("size", "collectives"), [(2, SHARED), (3, HOROVOD)])
def test_only_rows_of_tables_are_read_unless_they_are_needed_whole(size, collectives, ranks):
    for result in ranks(size).run(step_cost_tasks.look_up):
        assert result["size"] == size
        assert (result["collectives"], result["counted"]) == collectives
        assert result["gathers"] == 2
        assert [50, 4] not in result["whole"] and [60, 4] in result["whole"]


@pytest.mark.long
def test_all_kinds_of_indices_give_the_rows_that_plain_keras_takes(ranks, plain, exactness):
    [twin], results = together(
        plain.begin(step_cost_tasks.take_odd_indices), ranks(2).begin(step_cost_tasks.take_odd_indices_distributed)
    )
    for result in results:
        assert result["size"] == 2
        assert np.allclose(result["losses"], twin["losses"], rtol=1e-5)
        exactness(np.abs(np.subtract(result["table"], twin["table"])).max() / np.abs(twin["table"]).max(), 1e-6)
