"""Model files that all ranks write to one path, as scripts of one process do: whole, and the right ones."""

import pytest

from tests import model_file_tasks as tasks
from tests.compare import relative_distance
from tests.ranks.pool import Failure, together

FILES = {
    "keras": ["m.keras"],
    "save_model": ["m.keras"],
    "folder": ["m", "m/assets", "m/config.json", "m/metadata.json", "m/model.weights.h5"],
    "weights": ["m.weights.h5"],
    "save_weights": ["m.weights.h5"],
    "h5": ["m.h5"],
}
TIMES = {"keras": 20, "weights": 20, "export": 3, "archive": 3}
ALONE = {"keras": 2, "weights": 2, "folder": 2}
JOBS = {
    "all ranks to one path": {"times": {kind: 5 for kind in tasks.KINDS if kind not in TIMES}},
    "all ranks to one path, often": {"times": TIMES},
    "rank 0 alone": {"times": ALONE, "only_rank": 0},
    "rank 1 alone": {"times": ALONE, "only_rank": 1},
    "each into its own folder": {"times": {"keras": 2}, "own_folders": True},
    "a mesh that divides nothing": {"times": {"keras": 8, "weights": 8}, "mesh": (2, 1)},
}


@pytest.mark.parametrize("job", [pytest.param(job, marks=[pytest.mark.long] * ("often" in job)) for job in JOBS])
def test_what_ranks_save_at_once_is_whole_and_the_right_one(job, ranks, tmp_path):
    options = JOBS[job]
    results = ranks(2).run(tasks.save_and_load, folder=str(tmp_path), **options)
    assert len(results) == 2
    for kind, times in options["times"].items():
        assert len(list((tmp_path / kind).iterdir())) == (2 if "own_folders" in options else 1)
        for rank, found in enumerate(result[kind] for result in results):
            assert (found["others"], found["errors"]) == (0, []), kind
            assert len(found["rewritten"]) == (times if options.get("only_rank", rank) == rank else 0), kind
            assert all(found["rewritten"]), kind
            assert found["files"] == results[0][kind]["files"] != [], kind
            assert not [name for name in found["files"] if name.startswith(".")], "a temporary folder is left"
            assert kind not in FILES or set(found["files"]) <= {*FILES[kind]}, kind


def test_what_is_beside_it_and_in_it_stays(ranks, tmp_path):
    """Folders are written into as by one process: they are made, other files in them stay, links and modes too."""
    results = ranks(2).run(tasks.save_where_something_is, folder=str(tmp_path))
    assert len(results) == 2
    for result in results:
        assert result == {
            "kept": "mine",
            "mode": 0o640,
            "linked": True,
            "made": True,
            "printed": True,
            "described": True,
        }
    assert not list(tmp_path.rglob(".*"))


def test_a_folder_that_is_missing_is_told_as_keras_tells_it(ranks, tmp_path):
    results = ranks(2).attempt(tasks.save_to, path=str(tmp_path / "missing/m.keras"))
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure)
        assert result.kind == "FileNotFoundError"
        assert "missing/m.keras'" in result.message


def test_a_file_that_names_others_is_not_there_before_them(ranks, tmp_path):
    """Weights are in several files, and a folder has the name of the second, which so cannot be written."""
    tmp_path.joinpath("m_00001.weights.h5").mkdir()
    results = ranks(2).attempt(tasks.save_to, path=str(tmp_path / "m.weights.json"), kind="sharded")
    assert [result.kind for result in results] == ["IsADirectoryError"] * 2
    assert not tmp_path.joinpath("m.weights.json").exists()


def test_only_rank_0_asks_before_it_writes_over_a_file(ranks, tmp_path):
    results = ranks(2).run(tasks.save_over_a_file, path=str(tmp_path / "m.keras"))
    assert [result["asked"] for result in results] == [1, 0]
    assert (tmp_path / "m.keras").read_text() == "another"


def test_descriptions(ranks, tmp_path):
    results = ranks(2).run(tasks.describe, path=str(tmp_path / "model.json"))
    assert results == [True, True]
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


@pytest.mark.parametrize(("num_ranks", "num_steps", "is_told"), [(2, 3, True), (2, 4, False), (1, 3, False)])
def test_gradients_that_are_half_accumulated_are_told_of(num_ranks, num_steps, is_told, ranks, tmp_path):
    for said in ranks(num_ranks).run(tasks.accumulate_and_save, folder=str(tmp_path), num_steps=num_steps):
        told = {name for name, sentences in said.items() if sentences}
        assert told == ({"save", "save_model", "save_weights"} if is_told else set())
        assert all(len(sentences) <= 1 for sentences in said.values())
        assert not is_told or "keras-par: Model.save of 'sequential" in said["save"][0]


@pytest.mark.parametrize(
    ("num_ranks", "how"),
    [
        (2, {"mesh": ()}),
        (2, {"mesh": (), "zero": 3}),
        (4, {"mesh": (2, 2), "divided": ".*wide/kernel"}),
    ],
)
def test_training_goes_back_to_a_file_with_gradients_half_accumulated(
    num_ranks, how, ranks, plain, exactness, tmp_path
):
    folders = tmp_path / "plain", tmp_path / "ranks"
    for folder in folders:
        folder.mkdir()
    [twin], results = together(
        plain.begin(tasks.go_back_to_a_file, folder=str(folders[0]), mesh=None),
        ranks(num_ranks).begin(tasks.go_back_to_a_file, folder=str(folders[1]), **how),
    )
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-12)


@pytest.mark.parametrize("zero", [0, 3])
def test_rank_0_runs_what_it_is_given_for_a_whole_model(zero, ranks):
    first, second = ranks(2).run(tasks.on_rank_0, zero=zero)
    assert (first["rank"], second["rank"]) == (0, 1)
    assert first["returned"] == first["expected"] and second["returned"] is None
    assert first["assigned"] and second["assigned"] == (zero == 3)
    for found in first, second:
        key, value = found["failed"]
        assert key.startswith("AgreedRuntimeError") and "kp.run_on_rank_0 of model 'sequential" in key
        assert "KeyError: 'nothing'" in key and value.startswith("AgreedValueError")
        assert found["alone"] == found["rank"] and found["together"] == (2, 3)
    assert "rank 0 calls kp.run_on_rank_0 of a model with" in first["another"]
    assert "while rank 1 calls predict" in first["another"]
    assert "'call' is kp.run_on_rank_0 on rank 0 but predict on rank 1" in second["another"]
    if zero:
        assert first["predicted"] == second["predicted"] and "AgreedValueError" in first["predicted"]
    else:
        assert first["predicted"] == (2, 3) and second["predicted"] is None
