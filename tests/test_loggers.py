"""Callbacks of other packages run on one rank, unless they decide or say otherwise, and log what one process logs."""

from pathlib import Path

import pytest

from tests import logger_tasks as tasks
from tests.jobs import start, write_script


def metrics(folder: Path) -> dict[str, list[float]]:
    """What an MLflow file store holds, by metric."""
    found = {path.name: path.read_text().split("\n")[:-1] for path in folder.glob("0/*/metrics/*")}
    return {name: [float(line.split()[1]) for line in lines] for name, lines in found.items()}


@pytest.mark.long
def test_mlflow_logs_once_what_one_process_logs(ranks, plain, tmp_path):
    plain.run(tasks.mlflow_fit, folder=str(tmp_path / "plain"), distributed=False)
    logs = ranks(2).run(tasks.mlflow_fit, folder=str(tmp_path / "ranks"))
    assert len(logs) == 2 and logs[0] == logs[1]
    ours, theirs = metrics(tmp_path / "ranks/rank0"), metrics(tmp_path / "plain/rank0")
    assert ours.keys() == theirs.keys() >= {"loss", "accuracy", "val_loss", "validation_loss"}
    for name in theirs:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
    assert ours["loss"] == logs[0]["loss"]
    assert not (tmp_path / "ranks/rank1").exists()


@pytest.mark.long
@pytest.mark.parametrize("only_rank", [None, 1])
def test_a_logger_runs_on_the_lowest_rank_that_has_it(only_rank, ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), which="Logger", only_rank=only_rank)
    assert len(results) == 2
    [log] = tmp_path.glob("log*")
    assert log.name == f"log{only_rank or 0}"
    lines = log.read_text().splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(("step", "test"))] == (
        ["model", "begin", "epoch", "epoch", "epoch"] * 2
    )
    assert [float(line.split()[2]) for line in lines if line.startswith("epoch")][3:] == pytest.approx(
        results[0]["losses"], abs=1e-5
    )
    said = ["keras-par: Logger of package 'otherlog' runs on one rank only, as callbacks of other packages do; "]
    said = [line + "every_rank_writes = True changes that" for line in said]
    assert [result["said"] for result in results] == ([said, []] if only_rank is None else [[], []])


def test_it_runs_on_every_rank_if_it_says_so(ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), which="Logger", every_rank=True)
    assert [result["said"] for result in results] == [[], []]
    first, second = (tmp_path / f"log{rank}" for rank in range(2))
    assert first.read_text() == second.read_text() != ""


def test_a_stop_on_one_rank_stops_all(ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), which="Halting", epochs=5)
    assert [result["epochs"] for result in results] == [[0, 1], [0, 1]]


def test_what_decides_runs_everywhere(ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), which="Patient")
    assert [result["calls"] for result in results] == [3, 3]
    assert [result["said"] for result in results] == [[], []]


def test_a_kind_of_model_checkpoint_does_all_on_one_rank(ranks, tmp_path):
    assert len(ranks(2).run(tasks.fit, folder=str(tmp_path), which="Checkpoint", epochs=1)) == 2
    assert sorted(path.name for path in tmp_path.glob("*.h5*")) == ["0.weights.h5", "0.weights.h5.uploaded"]


def test_a_tuner_keeps_the_weights_of_a_divided_model(ranks, tmp_path):
    assert ranks(2).run(tasks.keep_best, folder=str(tmp_path)) == [[0.0] * 4] * 2


@pytest.mark.long
def test_one_that_needs_all_ranks_is_told_how_to_get_them(tmp_path):
    """It ends the job, and so is one of its own."""
    script = f"""
        import keras_par as kp
        from tests import logger_tasks

        kp.init()
        logger_tasks.fit({str(tmp_path)!r}, which="Evaluating")
    """
    job = start("mpirun", 2, write_script(tmp_path, script))
    assert job.status != 0
    assert "Evaluating of package 'otherlog' runs on one rank only" in job.output
    assert "but calls predict, which needs all ranks: set callback.every_rank_writes = True" in job.output
    assert "rank 0 failed first, so this rank stops: ValueError: keras-par: Evaluating" in job.output


def test_one_that_needs_all_ranks_gets_them_if_it_says_so(ranks, tmp_path):
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), which="Evaluating", every_rank=True)
    assert len(results) == 2
    for rank in range(2):
        assert "predicted 2" in (tmp_path / f"log{rank}").read_text()
