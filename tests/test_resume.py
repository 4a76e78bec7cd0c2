"""A run that stops anywhere and goes on ends as if it had not stopped, on as many ranks, more, fewer, or none."""

import numpy as np
import pytest

from tests import checkpoint_tasks
from tests.checkpoint_tasks import DATA, Batches
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import Failure

MIDDLE, EPOCH_END = (2, 3), (3, None)
FIRST_STEP, LAST_STEP, BEFORE_THE_LAST = (1, 1), (2, 5), (3, 4)


def equal(ours: dict, theirs: dict) -> bool:
    pairs = [*zip(ours["weights"], theirs["weights"], strict=True), *zip(ours["slots"], theirs["slots"], strict=True)]
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def whole(ranks, tmp_path_factory):
    """A function that returns the results of a training that was not interrupted, run once for each kind of data."""
    results: dict = {}

    def run(data: str, size: int = 2, **options):
        key = (data, size, *options)
        if key not in results:
            folder = str(tmp_path_factory.mktemp("whole"))
            results[key] = ranks(size).run(
                checkpoint_tasks.fit_once, folder=folder, data=data, every="epoch", **options
            )
        return results[key]

    return run


QUICK = [
    (2, "arrays"),
    *((2, data) for data in ("dataset", "unknown length", "py_dataset in parts", "loader", "sampler")),
    *((1, data) for data in ("arrays", "dataset", "cached")),
]
SLOW = [(size, data) for size in (2, 1) for data in DATA if (size, data) not in QUICK]


@pytest.mark.parametrize(("size", "data"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW)])
def test_on_as_many_ranks_it_ends_bit_by_bit_the_same(size, data, whole, ranks, tmp_path):
    """It is stopped several times; once it has ended, to start it again does nothing more."""
    stops = [MIDDLE, EPOCH_END]
    if (size, data) == (2, "arrays"):
        stops = [FIRST_STEP, MIDDLE, LAST_STEP, BEFORE_THE_LAST, EPOCH_END]
    resumes_at = None
    for stop in [*stops, None, None]:
        results = ranks(size).run(checkpoint_tasks.fit, folder=str(tmp_path), data=data, stop=stop, asynchronous=False)
        assert len(results) == size
        for ours, theirs in zip(results, whole(data, size), strict=True):
            assert (ours["from"], theirs["from"]) == (resumes_at, None), stop
            for epoch, weights in ours["at epoch ends"].items():
                assert all(map(np.array_equal, weights, theirs["at epoch ends"][epoch])), (stop, epoch)
            if stop is None:
                assert equal(ours, theirs)
                for key, values in ours["logs"].items():
                    assert values == theirs["logs"][key][-len(values) :], key
        resumes_at = resumes_from(data, *(stop or (4, None)))


def resumes_from(data: str, epoch: int, step: int | None) -> str:
    """The checkpoint written last before a stop, where one is written at each step but the last, then at the end."""
    num_steps = {"repeated": 4, "py_dataset in parts": 4, "shard": 7, "sampler": 7}.get(data, 5)
    if (data, epoch) == ("py_dataset in parts", 3):
        num_steps = 2  # of its 10 batches; Keras ends an epoch with them
    if step is None:
        # Stop comes after RankCheckpoint, so that the epoch's end has been written.
        return f"CKP-{epoch}_{num_steps}"
    is_last = step == num_steps and data != "unknown length"
    return f"CKP-{epoch}_{step - 1}" if is_last else f"CKP-{epoch}_{step}"


def test_several_steps_per_execution(ranks, whole, tmp_path):
    options = {"data": "arrays", "smooth": True}
    twin = ranks(2).run(checkpoint_tasks.fit_stepping, folder=str(tmp_path / "whole"), **options)
    ranks(2).run(checkpoint_tasks.fit_stepping, folder=str(tmp_path), stop=(2, 4), **options)
    for ours, theirs in zip(
        ranks(2).run(checkpoint_tasks.fit_stepping, folder=str(tmp_path), **options), twin, strict=True
    ):
        assert ours["from"] == "CKP-2_4"
        assert equal(ours, theirs)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_an_evaluation_before_training_changes_nothing(size, ranks, whole, tmp_path):
    options = {"folder": str(tmp_path), "data": "arrays", "smooth": True, "evaluate_first": True}
    ranks(size).run(checkpoint_tasks.fit, stop=(2, 3), asynchronous=False, **options)
    for ours, theirs in zip(
        ranks(size).run(checkpoint_tasks.fit, **options), whole("arrays", size, smooth=True), strict=True
    ):
        assert ours["from"] == "CKP-2_3"
        assert equal(ours, theirs)


@pytest.mark.parametrize("size", [1, 2])
def test_another_global_batch_in_the_middle_of_an_epoch_is_refused(size, ranks, tmp_path):
    ranks(size).run(checkpoint_tasks.fit, folder=str(tmp_path), data="arrays", stop=(1, 3), asynchronous=False)
    results = ranks(size).attempt(
        checkpoint_tasks.fit, folder=str(tmp_path), data="arrays", arguments={"batch_size": 8}
    )
    assert len(results) == size
    for result in results:
        assert isinstance(result, Failure)
        assert "the data has 10 batches an epoch now, but had 5 when the checkpoint was written" in result.message


def test_without_a_strategy_workers_that_have_read_ahead_of_a_part_of_an_epoch_are_refused(ranks, tmp_path):
    options = {"folder": str(tmp_path), "data": "py_dataset in parts", "arguments": {"x": Batches(8, workers=2)}}
    ranks(1).run(checkpoint_tasks.fit, stop=(1, 3), asynchronous=False, **options)
    [result] = ranks(1).attempt(checkpoint_tasks.fit, **options)
    assert isinstance(result, Failure)
    assert "how far its workers have read ahead is not known: give it workers=1" in result.message


@pytest.mark.parametrize("stop", [(1, 3), pytest.param((2, None), marks=pytest.mark.long)])
def test_workers_that_have_read_ahead_of_a_part_of_an_epoch_go_on_after_it(stop, ranks, tmp_path):
    options = {"data": "py_dataset in parts", "arguments": {"x": Batches(8, workers=2)}}
    twin = ranks(2).run(checkpoint_tasks.fit_once, folder=str(tmp_path / "whole"), every="epoch", **options)
    options["folder"] = str(tmp_path / "stopped")
    ranks(2).run(checkpoint_tasks.fit, stop=stop, asynchronous=False, **options)
    for ours, theirs in zip(ranks(2).run(checkpoint_tasks.fit, **options), twin, strict=True):
        assert ours["from"] is not None
        assert equal(ours, theirs)


@pytest.mark.parametrize(
    "data",
    [
        *(pytest.param(data, marks=pytest.mark.long) for data in ("dataset", "shard")),
        *(pytest.param(data, marks=pytest.mark.slow) for data in ("arrays", "sampler")),
    ],
)
def test_four_two_one_three_ranks_go_on_where_the_others_stopped(data, whole, ranks, tmp_path, exactness):
    """Equal losses to rounding, whatever the numbers of ranks; partial metrics and gradients change hands in epochs."""
    folder, first, *rest = str(tmp_path), (4, (1, 3)), (2, (2, 2)), (1, (3, 4)), (3, None)
    twin = whole(data, size=2, smooth=True)[0]
    for size, stop in (first, *rest):
        results = ranks(size).run(
            checkpoint_tasks.fit, folder=folder, data=data, stop=stop, smooth=True, asynchronous=False
        )
        assert len(results) == size
        assert all(result["from"] == results[0]["from"] for result in results)
        assert (results[0]["from"] is None) == (size == 4)
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert len(result["logs"]["loss"]) == 2
        assert log_distance(result["logs"], {key: values[-2:] for key, values in twin["logs"].items()}) < 2e-5
