"""Keras's own callbacks under a strategy: rank 0 writes what one process would have written, all decide alike."""

import collections
import contextlib
import csv
import gzip
import http.server
import json
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
import tensorflow as tf

from keras_par.launch.cli import main
from tests import stock_callback_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.jobs import start, write_script
from tests.ranks.pool import Failure, together
from tests.tasks import train_in_two_calls

SIZES = [2, pytest.param(4, marks=pytest.mark.slow)]


def both(ranks, plain, size, folder, callbacks, of_kind=lambda kind: [], **options):
    """What each rank and one process return from the same training, in `<folder>/ranks` and `<folder>/plain`."""

    def arguments(kind: str) -> dict:
        return {"folder": str(folder / kind), "callbacks": [*callbacks, *of_kind(kind)], **options}

    [twin], results = together(
        plain.begin(tasks.fit, distributed=False, **arguments("plain")),
        ranks(size).begin(tasks.fit, **arguments("ranks")),
    )
    assert len(results) == size
    for result in results:
        assert result["logs"] == results[0]["logs"]
        assert log_distance(result["logs"], twin["logs"]) < 1e-5
    return results, twin


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def only_rank_0_wrote(folder: Path, size: int) -> list[str]:
    """Rank 0 has the files that one process has, which are returned; the others have none."""
    ours, theirs = (files(folder / kind / "rank0") for kind in ("ranks", "plain"))
    named = [name for name in ours if "tfevents" not in name]  # which hold the moment at which they were written
    assert named == [name for name in theirs if "tfevents" not in name] != []
    assert len(ours) == len(theirs)
    for rank in range(1, size):
        assert list((folder / f"ranks/rank{rank}").iterdir()) == []
    return named


def weights_in(path: Path) -> list:
    """All arrays of a weights file, by name."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return [found[name] for name in sorted(found)]


def require_alike(folder: Path, names: list[str]) -> None:
    """Files of weights that rank 0 and one process have written hold the same."""
    for name in names:
        if name.endswith(".weights.h5"):
            ours, theirs = (weights_in(folder / kind / "rank0" / name) for kind in ("ranks", "plain"))
            assert relative_distance(ours, theirs) < 1e-6, name


BY_STEPS = {"save_weights_only": True, "save_freq": 3}
CHECKPOINTS = {
    "epochs": {"filepath": "sub/{epoch}.weights.h5", "save_weights_only": True},
    "best": {"filepath": "best.weights.h5", "save_weights_only": True, "save_best_only": True, "verbose": 1},
    "best-by-name": {"filepath": "{epoch}-{val_loss:.3f}.weights.h5", "save_weights_only": True}
    | {"save_best_only": True},
    "steps": {"filepath": "steps-{epoch}-{batch}.weights.h5", **BY_STEPS},
    "best-of-steps": {"filepath": "best-{epoch}-{batch}.weights.h5", **BY_STEPS, "save_freq": 6}
    | {"save_best_only": True, "monitor": "loss", "mode": "min"},
}


@pytest.mark.parametrize("size", SIZES)
def test_checkpoints_and_events_are_those_of_one_process(size, ranks, plain, tmp_path):
    """One training writes files by Keras's ModelCheckpoint, a subclass of it, and TensorBoard."""
    callbacks = [("ModelCheckpoint", options) for options in CHECKPOINTS.values()]
    callbacks += [("ModelCheckpoint", {"filepath": "model.keras"})]
    callbacks += [("CheckpointOfHead", {**CHECKPOINTS["best-by-name"], "filepath": "head-{epoch}.weights.h5"})]
    callbacks += [("TensorBoard", {"update_freq": 1, "histogram_freq": 2, "write_images": True})]
    results, twin = both(ranks, plain, size, tmp_path, callbacks)
    names = only_rank_0_wrote(tmp_path, size)
    assert len(names) > 15
    require_alike(tmp_path, names)
    best = [place for place, (_, options) in enumerate(callbacks) if "save_best_only" in options]
    for rank, result in enumerate(results):
        assert result["decisions"] == results[0]["decisions"]
        assert result["printed"] == ("" if rank else twin["printed"])
    for place in best:
        assert results[0]["decisions"][place]["best"] == pytest.approx(twin["decisions"][place]["best"], rel=1e-5)
    assert "saving model to best.weights.h5" in twin["printed"]
    [loaded] = plain.run(tasks.weights_of, path=str(tmp_path / "ranks/rank0/model.keras"))
    for ours, theirs in zip(loaded, results[0]["weights"], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for part in ("logs/train", "logs/validation"):
        require_events_alike(tmp_path, part, at_least=4)


def require_events_alike(folder: Path, part: str, at_least: int) -> None:
    ours, theirs = (events(folder / kind / "rank0" / part) for kind in ("ranks", "plain"))
    assert ours.keys() == theirs.keys() and len(ours) >= at_least, part
    for key in theirs:
        assert np.shape(ours[key]) == np.shape(theirs[key]), (part, key)
        if "histogram" not in key[0] and ours[key].dtype != object:
            np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-6, err_msg=f"{part} {key}")


def events(folder: Path) -> dict:
    """The values in a folder's one event file, by tag and step."""
    [path] = folder.glob("*tfevents*")
    found = {}
    for record in tf.data.TFRecordDataset(str(path)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            assert (value.tag, event.step) not in found
            found[value.tag, event.step] = tf.make_ndarray(value.tensor)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_lines_and_messages_are_those_of_one_process(size, ranks, plain, tmp_path):
    """Two calls of `fit` write by CSVLogger and a subclass of it, and send by RemoteMonitor."""
    callbacks = [
        ("CSVLogger", {"filename": "log.csv"}),
        ("CSVLogger", {"filename": "appended.csv", "append": True, "separator": ";"}),
        ("CSVOfEvaluation", {"filename": "evaluated.csv"}),
    ]
    with server() as (root, received):

        def monitor(kind: str) -> list:
            return [("RemoteMonitor", {"root": root, "path": f"/{kind}", "send_as_json": True})]

        both(ranks, plain, size, tmp_path, callbacks, monitor, times=2)
    assert only_rank_0_wrote(tmp_path, size) == ["appended.csv", "evaluated.csv", "log.csv"]
    for name, separator, count in (("log.csv", ",", 5), ("appended.csv", ";", 9), ("evaluated.csv", ",", 9)):
        ours, theirs = (
            list(csv.reader((tmp_path / kind / "rank0" / name).read_text().splitlines(), delimiter=separator))
            for kind in ("ranks", "plain")
        )
        assert len(ours) == count and ours[0] == theirs[0]
        for mine, other in zip(ours[1:], theirs[1:], strict=True):
            if mine[0].startswith("#"):
                assert mine == other
            else:
                assert list(map(float, mine)) == pytest.approx(list(map(float, other)), rel=1e-5), name
        columns = ["epoch", "accuracy", "loss", "val_accuracy", "val_loss"]
        assert set(ours[0]) == {*columns, *(["other_loss"] if name == "evaluated.csv" else [])}
    assert len(received["/ranks"]) == len(received["/plain"]) == 8
    for mine, other in zip(received["/ranks"], received["/plain"], strict=True):
        assert mine == pytest.approx(other, rel=1e-5)


@contextlib.contextmanager
def server():
    """The address of a server, and the lists of what it was sent, by path."""
    received = collections.defaultdict(list)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received[self.path].append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_address[1]}", received
        listening.shutdown()


def test_files_are_complete_when_fit_returns_on_any_rank(ranks, tmp_path):
    """The ranks' folders are one here."""
    for rank in range(2):
        tmp_path.joinpath(f"rank{rank}").symlink_to(tmp_path / "shared")
    tmp_path.joinpath("shared").mkdir()
    callbacks = [
        ("ModelCheckpoint", CHECKPOINTS["epochs"]),
        ("TensorBoard", {}),
        ("CSVLogger", {"filename": "log.csv"}),
    ]
    first, second = ranks(2).run(tasks.fit, folder=str(tmp_path), callbacks=[*callbacks, ("SlowEnd", {})])
    assert first["files"] == second["files"]
    assert len(first["files"]) == 4 + 2 + 1 + 1


def test_tensorboard_profiles_every_rank(ranks, tmp_path, capsys):
    callbacks = [("TensorBoard", {"profile_batch": (2, 4)})]
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), callbacks=callbacks)
    assert len(results) == 2
    assert main(["trace", str(tmp_path)]) == 0
    with gzip.open(capsys.readouterr().out.strip()) as file:
        events = json.load(file)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["rank0/logs/train /host:CPU", "rank1/logs/train/rank1 /host:CPU"]
    sums = [[each for each in events if each["pid"] == rank and "AllReduce" in each["name"]] for rank in names]
    assert len(sums[0]) == len(sums[1]) >= 3
    begins = [min(each["ts"] for each in of_rank) for of_rank in sums]
    ends = [max(each["ts"] + each["dur"] for each in of_rank) for of_rank in sums]
    assert max(begins) < min(ends)  # neither rank is through before the other begins: the clock is one


def test_a_profile_that_is_cut_off_is_named(tmp_path, capsys):
    profile = tmp_path / "logs" / "plugins" / "profile" / "2026_01_01" / "host.xplane.pb"
    assert main(["trace", str(tmp_path)]) == 2 and "there is no profile in" in capsys.readouterr().err
    profile.parent.mkdir(parents=True)
    profile.write_bytes(b"\x0a\xff\xff")
    assert main(["trace", str(tmp_path)]) == 2
    assert f"a profile is not whole: remove '{profile}'" in capsys.readouterr().err


def test_tensorboard_outside_of_fit(ranks, plain, tmp_path):
    plain.run(tasks.evaluate_with_tensorboard, folder=str(tmp_path / "plain"), distributed=False)
    assert len(ranks(2).run(tasks.evaluate_with_tensorboard, folder=str(tmp_path / "ranks"))) == 2
    for part in ("logs/validation", "logs/train", "predicted/train"):
        require_events_alike(tmp_path, part, at_least=1)
    assert files(tmp_path / "ranks/rank1") == []


DECIDING = {
    "stop": [("SavingStop", {"patience": 2, "verbose": 1})],
    "all": [
        ("EarlyStopping", {"patience": 5, "restore_best_weights": True, "verbose": 1}),
        ("ReduceLROnPlateau", {"patience": 1, "factor": 0.3, "cooldown": 1, "verbose": 1}),
        ("LearningRateScheduler", {"factor": 0.9}),
    ],
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", DECIDING)
def test_decisions(which, size, ranks, plain, tmp_path, exactness):
    results, twin = both(ranks, plain, size, tmp_path, DECIDING[which], optimizer="fast", epochs=12)
    for rank, result in enumerate(results):
        assert result["decisions"] == results[0]["decisions"]
        assert result["rates"] == results[0]["rates"] == pytest.approx(twin["rates"], rel=1e-6)
        for ours, theirs in zip(result["decisions"], twin["decisions"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        for ours, theirs in zip(result["weights"], results[0]["weights"], strict=True):
            np.testing.assert_array_equal(ours, theirs)
        exactness(relative_distance(result["weights"], twin["weights"]), 5e-6)
        assert result["printed"] == (twin["printed"] if rank == 0 else "")
        assert files(tmp_path / f"ranks/rank{rank}") == (["own.weights.h5"] if which == "stop" else [])
    assert len(twin["logs"]["loss"]) < 12, "nothing stopped"
    if which == "all":
        assert "reducing learning rate" in twin["printed"] and "Restoring model weights" in twin["printed"]


def test_rank_0s_learning_rate_holds_for_all(ranks, tmp_path):
    results = ranks(2).run(tasks.rates_by_chance, folder=str(tmp_path))
    assert len(results) == 2
    for result in results:
        assert result["rates"] == pytest.approx([0.01] * 5 + [0.02] * 5)
        for ours, theirs in zip(result["weights"], results[0]["weights"], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_swap_ema_weights_beside_a_subclass_of_tensorboard(ranks, plain, tmp_path, exactness):
    callbacks = [("SwapEMAWeights", {"swap_on_epoch": True}), ("ModelCheckpoint", CHECKPOINTS["epochs"])]
    results, twin = both(ranks, plain, 2, tmp_path, [*callbacks, ("TensorBoardOfMore", {})], optimizer="ema")
    for part in ("logs/train", "logs/validation"):
        require_events_alike(tmp_path, part, at_least=4)
    found = events(tmp_path / "ranks/rank0/logs/train")
    assert found["own", 3] == 9.0 and found["epoch_more", 3] == 6.0
    require_alike(tmp_path, only_rank_0_wrote(tmp_path, 2))
    for result in results:
        exactness(relative_distance(result["state"], twin["state"]), 1e-6)


BACKUPS = {
    "epochs": {"dropout": True},
    "steps, kept": {"save_freq": 3, "delete_checkpoint": False},
    "accumulating, beside another rank's backup": {"optimizer": "accumulating", "damage": "another backup"},
    "double, damaged": {"double_checkpoint": True, "damage": "half a file"},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("which", BACKUPS)
def test_backup_and_restore(which, size, ranks, plain, tmp_path, exactness):
    options = BACKUPS[which]
    [twin], results = together(
        plain.begin(tasks.resume, folder=str(tmp_path / "plain"), distributed=False, **options),
        ranks(size).begin(tasks.resume, folder=str(tmp_path / "ranks"), **options),
    )
    assert len(results) == size
    first = 1 if "damaged" in which else 2
    for rank, result in enumerate(results):
        assert result["epochs"] == twin["epochs"] == list(range(first, 4))
        assert result["seeds"] == twin["seeds"] and bool(twin["seeds"]) == ("dropout" in options)
        for key in ("state", "begun"):
            assert all(map(np.array_equal, result[key], results[0][key])), key
        exactness(relative_distance(result["state"], twin["state"]), 1e-6)
        if rank == 0:
            assert result["files"] == twin["files"]
            assert bool(result["files"]) == ("kept" in which)
        elif "another" not in which:
            assert result["files"] == []
    if options.get("optimizer") == "accumulating":
        [whole] = plain.run(tasks.resume, folder=str(tmp_path / "whole"), distributed=False, interrupt=None, **options)
        assert whole["epochs"] == [0, 1, 2, 3]
        exactness(relative_distance(results[0]["state"], whole["state"]), 1e-6)


def test_a_backup_on_one_rank_only_is_refused(ranks, tmp_path):
    results = ranks(2).attempt(tasks.backup_on_one_rank, folder=str(tmp_path))
    assert len(results) == 2
    for result in results:
        assert isinstance(result, Failure)
        assert result.kind == "AgreedValueError"
        assert "['BackupAndRestore'] on rank 0 but [] on rank 1" in result.message


@pytest.mark.parametrize("only_rank", [0, 1])
def test_a_callback_on_one_rank_only_writes_there(only_rank, ranks, tmp_path):
    """A file of weights has no sum of accumulated gradients there, for which the other rank would be needed."""
    callbacks = [("CSVLogger", {"filename": "log.csv"}), ("ModelCheckpoint", CHECKPOINTS["steps"]), ("TensorBoard", {})]
    options = {"callbacks": callbacks, "only_rank": only_rank, "optimizer": "accumulating"}
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), **options)
    assert len(results) == 2
    assert len(files(tmp_path / f"rank{only_rank}")) == 1 + 6 + 2
    assert files(tmp_path / f"rank{1 - only_rank}") == []


def test_other_paths_on_other_ranks(ranks, tmp_path):
    first, second = ranks(2).run(tasks.other_paths, folder=str(tmp_path))
    [told] = first["warnings"]
    assert "CSVLogger" in told and "log1.csv" in told and "every_rank_writes = True" in told
    assert second["warnings"] == []
    assert files(tmp_path) == ["log0.csv"]
    for result in ranks(2).run(tasks.other_paths, folder=str(tmp_path), every_rank_writes=True):
        assert result["warnings"] == []
    assert files(tmp_path) == ["log0.csv", "log1.csv"]


def test_models_without_a_strategy_are_left_alone(ranks, tmp_path):
    callbacks = [
        ("CSVLogger", {"filename": "log.csv"}),
        ("ModelCheckpoint", CHECKPOINTS["epochs"]),
        ("TensorBoard", {}),
    ]
    results = ranks(2).run(tasks.fit, folder=str(tmp_path), callbacks=callbacks, bound=False)
    assert len(results) == 2
    for rank in range(2):
        assert len(files(tmp_path / f"rank{rank}")) == 1 + 4 + 2


FAILING = [
    "ModelCheckpoint('full.weights.h5', save_weights_only=True)",
    pytest.param("CSVLogger('full')", marks=pytest.mark.slow),
    pytest.param("BackupAndRestore('full')", marks=pytest.mark.slow),
]


@pytest.mark.long
@pytest.mark.parametrize("callback", FAILING)
def test_a_file_that_fails_ends_all_ranks(callback, tmp_path):
    """Rank 0 finds a folder where it would write a file, or a backup that is none."""
    script = write_script(
        tmp_path,
        f"""
        import os, keras, numpy as np, keras_par as kp
        kp.init()
        os.chdir({str(tmp_path)!r})
        if kp.rank() == 0:
            os.makedirs("full.weights.h5")
            os.makedirs("full")
            open("full/latest.weights.h5", "w").close()
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        x, y = np.zeros((40, 4), "float32"), np.zeros((40, 2), "float32")
        print("ready", flush=True)
        model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[keras.callbacks.{callback}])
        print("went on", flush=True)
        """,
    )
    job = start("mpirun", 2, script)
    assert job.status != 0
    assert len(job.find("ready")) == 2
    assert "went on" not in job.output
    assert "RuntimeError: keras-par: rank 0 failed first, so this rank stops: " in job.output


def test_a_backup_that_is_not_there_leaves_accumulated_gradients_alone(ranks, plain, exactness, tmp_path):
    [twin], results = together(
        plain.begin(train_in_two_calls, distributed=False, backup=str(tmp_path / "plain")),
        ranks(2).begin(train_in_two_calls, distributed=True, backup=str(tmp_path / "ranks")),
    )
    for weights in results:
        exactness(relative_distance(weights, twin), 1e-6)
