"""Guards what a step costs by counting, where timing cannot: traces, operations, what waits for Python or the host."""

from collections import Counter

from tests import step_cost_tasks

MOST_OPERATIONS_MORE = 11  # than plain Keras's step: the rows' share, a weighted loss, and the reduction
WAITING = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "Print", "PrintV2", "StringFormat")


def test_a_step_is_traced_once_and_adds_one_collective_to_few_operations(ranks, plain):
    [twin] = plain.run(step_cost_tasks.train)
    assert twin["num_traces"] == 1
    for result in ranks(2).run(step_cost_tasks.train_distributed):
        assert result["size"] == 2
        assert result["num_traces"] == 1  # for two calls of fit of two epochs each
        assert result["iterations"] == twin["iterations"] == 4 * step_cost_tasks.NUM_STEPS
        more = Counter(result["operations"]) - Counter(twin["operations"])
        assert {kind: count for kind, count in more.items() if "Horovod" in kind} == {"HorovodGroupedAllreduce": 1}
        assert more.total() <= MOST_OPERATIONS_MORE, more
        assert not set(WAITING) & set(result["operations"])
