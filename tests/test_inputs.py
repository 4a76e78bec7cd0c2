"""Every kind of input: after training on it, each row has been used as often as its remainder policy says, exactly."""

import re

import numpy as np
import pytest

from tests import input_kinds
from tests.compare import relative_distance
from tests.input_kinds import BATCH_SIZE, GLOBAL, NUM_ROWS, write_images, write_rows
from tests.ranks.pool import REPOSITORY

LAST = NUM_ROWS % BATCH_SIZE
SHARDED = ("arrays", "nest", "frame", "files", "dataset", "shuffled_dataset", "unknown_dataset", "py_dataset")
SHARDED += ("data_loader",)

SIZES = [pytest.param(2, marks=pytest.mark.slow), 3]  # 3 ranks share rows unevenly


def cases_in_docs(heading: str) -> set[str]:
    """The names in the last column of the first table under a heading of docs/data.md."""
    section = (REPOSITORY / "docs" / "data.md").read_text().split(f"## {heading}")[1]
    table = re.search(r"(\|.*\|\n)+", section)
    assert table
    return {name for row in table[0].splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[-2])}


def test_the_docs_list_every_kind_with_its_test():
    assert cases_in_docs("The same input on every rank") == set(GLOBAL)
    others = {name for name in cases_in_docs("Each rank its own share") if "/" not in name and "test_" not in name}
    assert others == {*SHARDED, "generator", "few_batches"}
    for name in cases_in_docs("Each rank its own share"):
        assert "/" not in name or (REPOSITORY / name).exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("images")
    write_images(path)
    return str(path)


@pytest.mark.parametrize("kind", GLOBAL)
@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_are_given_the_same(kind, size, ranks, plain, folder):
    extra = {"folder": folder} if kind == "images" else {}
    [twin] = plain.run(input_kinds.count_global, kind=kind, **extra)
    assert set(twin) == {1.0} if "generator" in kind else {2.0}
    results = ranks(size).run(input_kinds.count_global, kind=kind, options={}, **extra)
    assert len(results) == size
    for counts in results:
        assert counts == twin


@pytest.mark.parametrize(("size", "fit"), [(2, {}), (2, {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}}), (3, {})])
def test_a_reader_of_rows_is_the_array_of_them_and_reads_a_rank_s_own_only(
    size, fit, ranks, plain, exactness, tmp_path
):
    write_rows(tmp_path)
    [twin] = plain.run(input_kinds.train_on_files, folder=str(tmp_path), distributed=False, **fit)
    results = ranks(size).run(input_kinds.train_on_files, folder=str(tmp_path), distributed=True, **fit)
    assert len(results) == size
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        assert result["read"][:2] == [0, NUM_ROWS - 1]  # by which ranks see that all have the same
    epochs = [result["read"][2:] for result in results]
    assert sorted(row for own in epochs for row in own) == sorted(2 * list(range(NUM_ROWS)))
    assert max(map(len, epochs)) - min(map(len, epochs)) <= 2 * -(-NUM_ROWS // BATCH_SIZE)  # a row a batch


@pytest.mark.parametrize("kind", ["arrays", "dataset", "unknown_dataset", "py_dataset"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("remainder", ["wrap", "drop"])
def test_policies_for_the_odd_rows_of_a_global_batch(kind, size, remainder, ranks):
    """Rows are taken in order here but for arrays and PyDatasets, which fit shuffles: there only sums are known."""
    results = ranks(size).run(input_kinds.count_global, kind=kind, options={"remainder": remainder})
    assert len(results) == size
    added = -LAST % size if remainder == "wrap" else -(LAST % size)
    assert added != 0
    for counts in results:
        assert sum(counts) == 2 * (NUM_ROWS + added)
        assert counts == results[0]
        if "dataset" in kind and kind != "py_dataset":
            first = NUM_ROWS - LAST
            changed = range(first, first + added) if remainder == "wrap" else range(NUM_ROWS + added, NUM_ROWS)
            expected = [2 * (1 + np.sign(added) * (row in changed)) for row in range(NUM_ROWS)]
            assert counts == expected


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_a_last_batch_with_fewer_rows_than_ranks_is_dropped_whole(kind, ranks):
    for counts in ranks(3).run(input_kinds.count_global, kind=kind, options={"remainder": "drop"}, batch_size=7):
        assert sum(counts) == 2 * 18  # of 7, 7, 7 and 2 rows


def test_only_training_leaves_odd_rows_out(ranks):
    mean = (NUM_ROWS - 1) / 2
    assert ranks(2).run(input_kinds.numbers_tested) == [[mean, mean, NUM_ROWS]] * 2


@pytest.mark.parametrize("kind", [*SHARDED, "generator", "few_batches"])
@pytest.mark.parametrize("size", SIZES)
def test_shards_of_the_user_exactly(kind, size, ranks, folder):
    extra = {"folder": folder} if kind == "files" else {}
    results = ranks(size).run(input_kinds.count_shards, kind=kind, remainder="exact", **extra)
    assert len(results) == size
    for result in results:
        assert set(result["counts"]) == {1.0 if kind == "generator" else 2.0}
        assert result["steps"] == results[0]["steps"]
    if kind == "py_dataset":  # a rank loads its own batches only, but for those that show Keras the types
        asked = [set(result["asked"]) for result in results]
        num_batches = -(-NUM_ROWS // (BATCH_SIZE // size))
        assert [set(range(rank, num_batches, size)) for rank in range(size)] == asked


@pytest.mark.parametrize("kind", [kind for kind in SHARDED if kind != "unknown_dataset"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("remainder", ["wrap", "drop"])
def test_shards_of_the_user_by_policy(kind, size, remainder, ranks, folder):
    extra = {"folder": folder} if kind == "files" else {}
    results = ranks(size).run(input_kinds.count_shards, kind=kind, remainder=remainder, **extra)
    assert len(results) == size
    deals_batches = kind in ("py_dataset", "data_loader")
    local = BATCH_SIZE // size
    length = -(-NUM_ROWS // local) if deals_batches else NUM_ROWS
    added = -length % size if remainder == "wrap" else -(length % size)
    for result in results:
        assert result["counts"] == results[0]["counts"]
        assert result["steps"] == results[0]["steps"]
        if not deals_batches:
            assert sum(result["counts"]) == 2 * (NUM_ROWS + added)
        assert (min(result["counts"]) >= 2) == (remainder == "wrap" or added == 0)
        assert (max(result["counts"]) <= 2) == (remainder == "drop" or added == 0)


@pytest.mark.parametrize("lengths", [[17, 6], [1, 22], [10, 8, 5]])
def test_each_rank_feeds_its_own_slice(lengths, ranks):
    results = ranks(len(lengths)).run(input_kinds.count_slices, lengths=lengths)
    assert len(results) == len(lengths)
    for result in results:
        assert set(result["counts"]) == {2.0}
        assert result["steps"] == 2 * max(-(-length // 2) for length in lengths)


ODD = "keras-par: data.shard: 1 of 23 elements are"
SAID = {
    "wrap": [f"{ODD} read twice, so that each of 2 shards has 12 (remainder='wrap')"],
    "drop": [f"{ODD} left out, so that each of 2 shards has 11 (remainder='drop')"],
    "exact": [],
    "fit": [
        "keras-par: of a global batch whose rows 2 ranks do not divide, rows are left out (remainder='drop')",
    ],
    "unequal": ["keras-par: the ranks have [9, 3] batches; a rank without one takes part with no rows"],
}


@pytest.mark.parametrize("which", SAID)
def test_what_is_left_out_or_read_twice_is_said_once_on_rank_0(which, ranks):
    assert ranks(2).run(input_kinds.said, which=which) == [SAID[which], []]


@pytest.mark.parametrize("which", ["seed", "arrays"])
@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_read_different_data_are_named(which, size, ranks):
    first, *others = ranks(size).run(input_kinds.warnings_about, which=which)
    assert not any(others)
    names = "rank 1" if size == 2 else "ranks 1, 2"
    assert len(first) == 2 and first[0] == first[1], first  # at once, and at the end of fit
    assert f"on {names} than on rank 0" in first[0] and first[0].startswith("=" * 100)
    assert "auto_shard_dataset=False" in first[0]
    assert {"seed": "give shuffles and splits the same seed", "arrays": "load the same arrays"}[which] in first[0]


def test_a_second_model_s_other_rows_are_told_of_as_well(ranks):
    first, second = ranks(2).run(input_kinds.warnings_about, which="twice")
    assert len(first) == 4 and second == []


@pytest.mark.parametrize(
    ("labels", "said"), [("telling", "the ranks the same rows, as their labels tell"), ("alike", "used twice or never")]
)
def test_augmentation_is_spoken_of_only_where_labels_show_that_rows_are_the_same(labels, said, ranks):
    first, second = ranks(2).run(input_kinds.augmented, labels=labels)
    assert len(first) == 2 and second == [] and said in first[0], first


def test_the_same_data_is_not_complained_about(ranks):
    assert ranks(2).run(input_kinds.warnings_about, which="same seed") == [[], []]
