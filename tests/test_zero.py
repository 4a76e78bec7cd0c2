"""Optimizers' state in parts: the result is plain data parallel's to the bit, memory and bytes are what they should."""

import numpy as np
import pytest

from tests import zero_tasks
from tests.cases import CASES
from tests.compare import relative_distance
from tests.jobs import start
from tests.launcher import program

QUICK = {
    2: (
        "adam",
        "adamw",
        "accumulation",
        "ema-accumulation-class-weight",
        "loss-scale-accumulation",
        "regularizers",
        "embedding-adam",
        "two-optimizers",
        "own-step",
        "eager",
        "jit-steps-per-execution",
        "unknown-length-steps-per-execution",
        "bfloat16",
    ),
    4: ("ema", "one-row-left-over"),
}
NORMS = 1e-6  # a norm is added up of the parts' squares


def runs() -> list:
    found = [(size, name) for size in QUICK for name in CASES]
    return [pytest.param(*each, marks=[pytest.mark.slow] * (each[1] not in QUICK[each[0]])) for each in found]


def require_equal(ours: list[dict], theirs: list[dict], tolerance: float = 0.0) -> None:
    for own, other in zip(ours, theirs, strict=True):
        pairs = [*zip(own["weights"], other["weights"], strict=True)]
        slots = zip(own["slots"], other["slots"], strict=True)
        pairs += [(a, b) for (name, a), (_, b) in slots if "gradient_accumulator" not in name]
        if tolerance == 0.0:
            assert all(np.array_equal(a, b) for a, b in pairs)
        assert relative_distance(*zip(*pairs, strict=True)) <= tolerance


@pytest.mark.parametrize(("size", "name"), runs())
def test_parts_end_where_plain_data_parallel_ends(size, name, ranks):
    plain = ranks(size).run(zero_tasks.train, name=name)
    parts = ranks(size).run(zero_tasks.train, name=name, **zero_tasks.ALL)
    assert len(parts) == size
    has_state = any("_" in slot for slot, _ in plain[0]["slots"] if "accumulator" not in slot and "rate" not in slot)
    for result in parts:
        assert result["parts"] > 0
        assert result["shards"] > 0 or not has_state
    require_equal(parts, plain, NORMS if plain[0]["clips"] else 0.0)


@pytest.mark.parametrize("optimizer", ["adam", "averaging and accumulating", "loss scale"])
@pytest.mark.parametrize(("size", "mesh"), [(3, None), (4, None), (4, (2, 2))])
def test_dims_are_divided_that_do_not_divide_evenly_and_beside_layouts(optimizer, size, mesh, ranks):
    plain = ranks(size).run(zero_tasks.train_uneven, optimizer=optimizer, mesh=mesh)
    parts = ranks(size).run(zero_tasks.train_uneven, optimizer=optimizer, mesh=mesh, **zero_tasks.ALL)
    assert len(parts) == size
    assert all(result["parts"] > 0 and result["shards"] > 0 for result in parts)
    # Three ranks do without shared memory, and Horovod adds up in an order of its own.
    require_equal(parts, plain, NORMS if size == 3 else 0.0)


def test_an_optimizer_that_looks_beyond_elements_has_whole_variables(ranks):
    [one, other] = [
        ranks(2).run(zero_tasks.train_uneven, optimizer="lamb", **options) for options in ({}, zero_tasks.ALL)
    ]
    assert [(result["parts"], result["shards"]) for result in other] == [(0, 0)] * 2
    require_equal(one, other)


def test_small_variables_stay_whole(ranks):
    assert [result["parts"] for result in ranks(2).run(zero_tasks.train_uneven, optimizer="adam", zero=1)] == [0, 0]


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 0)])
def test_state_that_is_there_is_divided_or_made_whole(first, then, ranks):
    plain = ranks(2).run(zero_tasks.change_stage, first=0, then=0)
    results = ranks(2).run(zero_tasks.change_stage, first=first, then=then)
    assert [bool(result["shards"]) for result in results] == [bool(then)] * 2
    require_equal(results, plain)


def test_files_have_the_whole_state(ranks, tmp_path):
    for trained, loaded in ranks(2).run(zero_tasks.save_and_load, path=str(tmp_path / "model.keras")):
        assert loaded["shards"] == trained["shards"] > 0
        require_equal([loaded], [trained])


def test_state_that_rank_0_alone_has_read_becomes_that_of_all(ranks, tmp_path):
    path = str(tmp_path / "model.keras")
    ranks(2).run(zero_tasks.save_and_load, path=path)
    plain, parts = (ranks(2).run(zero_tasks.begin_from_file, path=path, zero=zero) for zero in (0, 1))
    assert all(result["shards"] > 0 for result in parts)
    require_equal(parts, plain)


def test_a_rank_alone_does_not_train_with_a_part_of_the_state(ranks):
    for result in ranks(2).run(zero_tasks.train_alone):
        assert np.isfinite(result["loss"])
        assert "fit of 'sequential" in result["said"]
        assert "needs all ranks, because its optimizer's state is divided" in result["said"]


def test_a_loop_by_hand_may_give_whole_gradients(ranks):
    require_equal(ranks(2).run(zero_tasks.own_loop, **zero_tasks.ALL), ranks(2).run(zero_tasks.own_loop))


def test_as_many_bytes_are_sent(ranks):
    """Of a ring; two ranks divide all dims evenly but that of the last bias, of which they send one element more."""
    [plain, parts] = [ranks(2).run(zero_tasks.sent, **options)[0] for options in ({}, zero_tasks.ALL)]
    assert [kind for kind, _ in plain] == ["all_reduce"]
    assert [kind for kind, _ in parts] == ["reduce_scatter", "all_gather"]
    [whole] = [size for _, size in plain]
    assert whole <= sum(size for _, size in parts) <= whole + 2 * 4


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_memory_is_what_the_formula_says(size):
    """Of float32 Adam: P bytes of weights, P of gradients, 2 P of state, of which a rank has its part."""
    job = start("mpirun", size, program("zero_memory"), "1")
    assert job.status == 0, job.output
    ratios = [float(peak) / float(weights) for peak, weights in job.find(r"peak (\S+) of weights (\S+)")]
    expected = 2 + 2 / size
    assert len(ratios) == size
    assert all(abs(ratio - expected) <= 0.1 * expected for ratio in ratios), (ratios, expected)
