"""Numbers that steps of users' own return reach callbacks and callers as one process's, of batches and of epochs."""

import pytest

from tests import own_log_tasks as tasks


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("tracked", [(), ("kept",)], ids=str)
@pytest.mark.parametrize("compiled", [None, "mse"])
def test_logs_are_one_processs(kind, tracked, compiled, ranks, plain):
    how = {"kind": kind, "tracked": tracked, "compiled": compiled}
    [theirs] = plain.run(tasks.train, distributed=False, **how)
    results = ranks(2).run(tasks.train, distributed=True, **how)
    assert len(results) == 2 and len(theirs) == 2 * (4 + 2 + 1) + 3
    for ours in results:
        assert [(when, sorted(logs)) for when, logs in ours] == [(when, sorted(logs)) for when, logs in theirs]
        for (when, own), (_, wanted) in zip(ours, theirs, strict=True):
            assert own == pytest.approx(wanted, rel=1e-6), when
