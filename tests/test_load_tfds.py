"""kp.data.load_tfds: every row on one rank, only a rank's own files opened, one error on all ranks, no hang."""

import functools
import shutil
from pathlib import Path

import pytest

from tests import tfds_tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure


def rows_of(results, size):
    assert len(results) == size
    return [result["rows"][0] for result in results]


def sentences_of(results):
    """What rank 0 said; the others must be silent."""
    assert [result["said"] for result in results[1:]] == [[]] * (len(results) - 1)
    return results[0]["said"]


@pytest.fixture(scope="module")
def prepared(ranks, tmp_path_factory):
    """A function that returns a folder that has so many rows in so many files, written once; nobody may change it."""

    @functools.cache
    def prepare(num_rows: int = 24, num_files: int = 4) -> str:
        data_dir = str(tmp_path_factory.mktemp("prepared"))
        ranks(2).run(tfds_tasks.write, data_dir=data_dir, num_rows=num_rows, num_files=num_files)
        return data_dir

    return prepare


@pytest.mark.parametrize("size", [3, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 2, 4))])
def test_rows_of_every_policy(size, ranks, prepared):
    """Each row is on one rank, or some are read twice or left out so that ranks have as many, which is said."""
    exact, wrap, drop = (
        ranks(size).run(tfds_tasks.load, data_dir=prepared(22), remainder=remainder)
        for remainder in ("exact", "wrap", "drop")
    )
    shares, odd = rows_of(exact, size), 22 % size
    assert sorted(row for share in shares for row in share) == list(range(22))
    assert max(map(len, shares)) - min(map(len, shares)) == (1 if odd else 0)
    assert shares == [result["even"] for result in exact]
    assert sentences_of(exact) == []
    assert {result["policy"] for result in exact} == {"OFF"}

    shares, longest = rows_of(wrap, size), -(-22 // size)
    assert [len(share) for share in shares] == [longest] * size
    for share, result in zip(shares, wrap, strict=True):
        assert set(share) == set(result["even"])  # a short rank reads one of its own again: no other file

    shares = rows_of(drop, size)
    assert [len(share) for share in shares] == [22 // size] * size
    assert len({row for share in shares for row in share}) == 22 - odd

    for results, text in ((wrap, f"{longest * size - 22} of 22 rows are read twice"), (drop, f"{odd} of 22 rows are")):
        said = sentences_of(results)
        assert len(said) == (1 if odd else 0) and all(text in sentence for sentence in said)
    assert all("rows are left out" in sentence for sentence in sentences_of(drop))


@pytest.mark.parametrize("split", ["train[3:20]", "train[:70%]", "train+test", "all", "test[1:]+train[:2]"])
def test_slices_and_sums_of_splits(split, ranks, prepared):
    [whole] = ranks(1).run(tfds_tasks.load, data_dir=prepared(24, 3), split=split)
    shares = rows_of(ranks(3).run(tfds_tasks.load, data_dir=prepared(24, 3), split=split), 3)
    assert sorted(row for share in shares for row in share) == sorted(whole["rows"][0])
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_fewer_rows_than_ranks(ranks, prepared):
    lengths = {
        remainder: [
            len(share)
            for share in rows_of(ranks(4).run(tfds_tasks.load, data_dir=prepared(2, 1), remainder=remainder), 4)
        ]
        for remainder in ("exact", "wrap", "drop")
    }
    assert lengths == {"exact": [1, 1, 0, 0], "wrap": [1, 1, 1, 1], "drop": [0, 0, 0, 0]}


def copies_for(size: int, data_dir: str, folder: Path) -> list[str]:
    """A copy of the data set for each rank."""
    [version] = [path.parent for path in Path(data_dir).rglob("dataset_info.json")]
    return [str(shutil.copytree(version, folder / f"copy{rank}" / version.name)) for rank in range(size)]


# 24 rows in 4 files of 6: the rows of rank r of 3 are 8r to 8r + 7, so that neighbours share a file.
@pytest.mark.parametrize("keep", [[[0, 1], [2, 3]], [[0, 1], [1, 2], [2, 3]]], ids=["2 ranks", "3 ranks"])
def test_a_rank_opens_only_the_files_it_has_rows_in(keep, ranks, prepared, tmp_path):
    size = len(keep)
    folders = copies_for(size, prepared(), tmp_path)
    shares = ranks(size).run(tfds_tasks.load_without_others_files, folders=folders, keep=keep)
    assert sorted(row for share in shares for row in share) == list(range(24))


def test_a_missing_file_of_its_own_is_missed(ranks, prepared, tmp_path):
    folders = copies_for(2, prepared(), tmp_path)
    results = ranks(2).attempt(tfds_tasks.load_without_others_files, folders=folders, keep=[[0], [2, 3]])
    assert isinstance(results[0], Failure) and results[0].kind == "NotFoundError"
    assert len(results[1]) == 12


def test_too_few_files_are_reported_once(ranks, prepared):
    results = ranks(3).run(tfds_tasks.load, data_dir=prepared(24, 2))
    assert sorted(row for share in rows_of(results, 3) for row in share) == list(range(24))
    [sentence] = sentences_of(results)
    assert sentence.startswith("keras-par: data.load_tfds('numbered_rows', 'train') has 2 file shard(s) for 3 ranks")
    assert "tfds.download.DownloadConfig(num_shards=3)" in sentence
    assert sentences_of(ranks(2).run(tfds_tasks.load, data_dir=prepared(24, 2))) == []


def test_files_are_shuffled_by_the_seed(ranks, prepared):
    options = {"data_dir": prepared(24, 8), "shuffle_files": True, "num_readings": 4}
    first, again, other = (ranks(2).run(tfds_tasks.load, seed=seed, **options) for seed in (1, 1, 2))
    assert len(first) == 2
    for rank in range(2):
        readings = first[rank]["rows"]
        assert readings == again[rank]["rows"] != other[rank]["rows"]
        assert len(set(map(tuple, readings))) > 1
        assert {tuple(sorted(reading)) for reading in readings} == {tuple(sorted(first[rank]["even"]))}


def test_a_shard_is_loaded_without_the_other_ranks(ranks, prepared):
    [shares, nothing] = ranks(2).run(tfds_tasks.load_every_shard, data_dir=prepared(22), num_shards=4)
    assert nothing == []
    assert [len(share) for share in shares] == [6, 6, 5, 5]
    assert sorted(row for share in shares for row in share) == list(range(22))


@pytest.mark.parametrize(("by_name", "only_first_asks"), [(True, False), (True, True), (False, False)])
def test_only_rank_0_prepares(by_name, only_first_asks, ranks, tmp_path):
    results = ranks(3).run(
        tfds_tasks.download, data_dir=str(tmp_path), by_name=by_name, only_first_asks=only_first_asks
    )
    assert [result["generated"] for result in results] == [1, 0, 0]
    assert sorted(row for result in results for row in result["rows"]) == list(range(24))
    again = ranks(3).run(tfds_tasks.download, data_dir=str(tmp_path), by_name=by_name)
    assert [result["generated"] for result in again] == [0, 0, 0]


@pytest.mark.parametrize(
    ("which", "what"),
    [
        ("unknown", "DatasetNotFoundError: Dataset no_such_data_set not found"),
        ("not prepared", "prepare it before, pass download=True, or give the data_dir that has it"),
        ("not on one rank", "that has it. (on rank 1)"),
        ("no split", "no_such_split"),
        ("no rows", "the split has no rows"),
        ("download", "OSError: the server is away (on rank 0)"),
        ("seeds", "seed is 0 on rank 0 but 1 on rank 1: give all ranks the same arguments"),
        ("remainder", "(remainder='pad') is unknown, use 'exact', 'wrap' or 'drop'"),
        ("download a shard", "leave shard_id out, or prepare the data set before"),
    ],
)
def test_all_ranks_raise_the_same_error(which, what, ranks, prepared):
    results = ranks(2).attempt(tfds_tasks.fail, which=which, data_dir=prepared())
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure), result
        assert result.kind == ("ValueError" if which == "download a shard" else "AgreedValueError"), result.traceback
        assert result.message.startswith("keras-par: data.load_tfds")
        assert what in result.message
        assert "\n" not in result.message
    assert results[0].message == results[1].message


def test_without_tensorflow_datasets(ranks):
    results = ranks(2).attempt(tfds_tasks.without_the_package)
    assert len(results) == 2
    for result in results:
        assert result.kind == "RuntimeError"
        assert result.message == (
            "keras-par: data.load_tfds needs tensorflow-datasets: run 'pip install tensorflow-datasets "
            "importlib_resources'."
        )


def test_fit_takes_it_as_this_ranks_rows(ranks, plain, exactness, prepared):
    results = ranks(2).run(tfds_tasks.train, data_dir=prepared())
    assert len(results) == 2
    shares = [result["rows"] for result in results]
    order = [row for start in (0, 6) for share in shares for row in share[start : start + 6]]
    assert sorted(order) == list(range(24))
    [twin] = plain.run(tfds_tasks.train_in_order, order=order, batch_size=12)
    for result in results:
        exactness(relative_distance(result["weights"], twin), 1e-6)
