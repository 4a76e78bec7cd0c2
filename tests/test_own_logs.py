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
    assert len(results) == 2 and len(theirs) == 2 * (3 + 2 + 1) + 3
    for ours in results:
        assert [(when, sorted(logs)) for when, logs in ours] == [(when, sorted(logs)) for when, logs in theirs]
        for (when, own), (_, wanted) in zip(ours, theirs, strict=True):
            assert own == pytest.approx(wanted, rel=1e-6), when


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_what_is_printed_is_one_processs_loss(kind, is_read, ranks, plain):
    [theirs] = plain.run(tasks.train, kind=kind, tracked=("kept",), compiled=None, distributed=False)
    wanted = [logs["loss"] for when, logs in theirs if when == "batch"]
    (lines, shown), _ = ranks(2).run(tasks.printed, kind=kind, tracked=("kept",), is_read=is_read)
    assert lines == pytest.approx(wanted, rel=1e-6) and len(lines) == 6
    assert shown and all(loss == pytest.approx(wanted[step - 1], rel=1e-6) for step, loss in shown[:1])
