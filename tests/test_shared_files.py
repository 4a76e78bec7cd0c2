"""What all ranks of a host ask for at one path: files of tf.data's cache, and files that Keras downloads."""

import pytest

from tests import shared_file_tasks as tasks
from tests.compare import relative_distance


def test_each_rank_caches_in_a_file_of_its_own(ranks, plain, tmp_path, exactness):
    [twin] = plain.run(tasks.fit_cached, path=str(tmp_path / "plain"), distributed=False)
    for _ in range(2):  # the second time it is there
        results = ranks(2).run(tasks.fit_cached, path=str(tmp_path / "cache"), distributed=True)
        assert len(results) == 2
        for weights in results:
            exactness(relative_distance(weights, twin), 1e-6)
    found = {path.name for path in tmp_path.glob("cache*.index")}
    assert found == {f"cache-rank-{rank}-of-2.index" for rank in range(2)}


@pytest.mark.long
def test_a_complete_cache_of_one_process_is_read(ranks, plain, tmp_path):
    path = str(tmp_path / "cache")
    assert plain.run(tasks.write_cache, path=path, first=0) == [[0, 1, 2, 3, 4] * 2]
    before = {file.name for file in tmp_path.iterdir()}
    assert ranks(2).run(tasks.write_cache, path=path, first=10) == [[0, 1, 2, 3, 4] * 2] * 2
    assert {file.name for file in tmp_path.iterdir()} == before


def test_a_share_is_not_taken_from_a_cache_of_all_rows(ranks, plain, tmp_path):
    path = str(tmp_path / "cache")
    plain.run(tasks.write_cache, path=path, first=0)
    assert ranks(2).run(tasks.cache_shares, path=path) == [[0, 2, 4] * 2, [1, 3] * 2]


@pytest.fixture
def archive(tmp_path):
    tasks.write_archive(tmp_path / "pack.zip")
    return {"archive": str(tmp_path / "pack.zip"), "folder": str(tmp_path)}


WHOLE = {"files": 30, "complete": True}


def test_one_rank_downloads_and_extracts_and_the_others_wait(archive, ranks):
    results = ranks(2).run(tasks.get_archive, **archive)
    assert sum(result.pop("downloads") for result in results) == 1
    assert sum(result.pop("extractions") for result in results) == 1
    assert results == [WHOLE, WHOLE]


def test_a_rank_may_ask_alone_and_again(archive, ranks):
    alone, nothing = ranks(2).run(tasks.get_archive, **archive, ranks=[0])
    assert alone == {"downloads": 1, "extractions": 1, **WHOLE} and nothing == {}
    results = ranks(2).run(tasks.get_archive, **archive, times=2, force_download=True)
    assert sum(result["downloads"] for result in results) == 2  # once for each time that a script asks
    assert all(result["complete"] and result["files"] == 30 for result in results)


def test_a_failed_download_fails_on_every_rank(archive, ranks):
    results = ranks(2).attempt(tasks.get_archive, **archive, file_hash="0" * 64)
    assert [result.kind for result in results] == ["ValueError"] * 2
    assert all("Incomplete or corrupted file" in result.message for result in results)


def test_ranks_print_what_one_process_prints_once(ranks):
    first, second = ranks(2).run(tasks.prints)
    for name in ("summary", "fit 1", "fit 2", "fit auto", "evaluate", "predict"):
        assert first[name], name
        assert second[name] == "", name
    assert "Total params" in first["summary"] and "loss" in first["fit 2"]
    for name in ("print_fn", "caught", "independent"):
        assert "Total params" in first[name] and first[name] == second[name]
