"""Checkpoints and files of models that several ranks divide: each shard once, back into any mesh from one folder."""

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_par.checkpoint import manifest as manifests
from keras_par.checkpoint.files import write_arrays
from keras_par.checkpoint.grid import Grid
from keras_par.checkpoint.reader import Reader
from tests import sharded_checkpoint_tasks as tasks
from tests.compare import log_distance, relative_distance
from tests.ranks.pool import Failure

NUM_RANKS = {None: 1, "2x2": 4, "replicas": 4} | dict.fromkeys(["data", "1x2", "2x1"], 2)
NUM_RANKS |= {f"data zero {stage}": 2 for stage in (1, 2, 3)}


def run(ranks, task, mesh, **arguments) -> list:
    results = ranks(NUM_RANKS[mesh]).run(task, mesh=mesh, **arguments)
    assert len(results) == NUM_RANKS[mesh]
    return results


@pytest.fixture(scope="module")
def written(ranks, tmp_path_factory):
    """A function that returns a folder with the checkpoints of a mesh that stopped, and what its ranks had then."""
    found: dict = {}

    def write(mesh: str, layout: str):
        if (mesh, layout) not in found:
            folder = tmp_path_factory.mktemp("written")
            options = {"folder": str(folder), "layout": layout, "every_state": True, "stop": (1, 4)}
            found[mesh, layout] = folder, run(ranks, tasks.fit, mesh, **options, asynchronous=False, every=2)
        return found[mesh, layout]

    return write


SAME = [
    ("1x2", "wide"),
    ("data zero 2", "wide"),
    ("data zero 3", "wide"),
    ("replicas", "wide"),
    pytest.param("2x2", "other", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mesh", "layout"), SAME)
def test_on_the_same_mesh_it_ends_bit_by_bit_the_same(mesh, layout, written, ranks, tmp_path):
    """Seeds, moving statistics that are not synchronized, accumulated gradients, momenta; all of them divided."""
    options = {"layout": layout, "every_state": True, "epochs": 2}
    twins = run(ranks, tasks.fit, mesh, folder=None, **options)
    folder = shutil.copytree(written(mesh, layout)[0], tmp_path / "copy")
    for ours, theirs in zip(run(ranks, tasks.fit, mesh, folder=str(folder), **options), twins, strict=True):
        assert ours["from"] == "CKP-1_4"
        assert ours["divided"] == theirs["divided"] > 0
        for key in ("weights", "slots", "accumulated", "statistics"):
            assert all(np.array_equal(a, b) for a, b in zip(ours[key], theirs[key], strict=True)), key
        assert ours["logs"]["loss"] == theirs["logs"]["loss"]


def arrays_in(folder: Path, rank: int, name: str) -> dict:
    return {key: array.shape for key, array in load_file(folder / f"rank.{rank}/{name}.safetensors").items()}


def test_each_shard_is_written_once(written):
    folder, _ = written("2x2", "other")
    document = json.loads((folder / "CKP-1_4.json").read_text())
    assert document["version"] == manifests.VERSION
    assert document["checkpoint"]["mesh"] == {
        "shape": [2, 2],
        "axis_names": ["batch", "model"],
        "ranks": [0, 1, 2, 3],
        "batch_axis": "batch",
        "replica_axis": None,
    }
    files = [arrays_in(folder, rank, "CKP-1_4") for rank in range(4)]

    def found(end: str) -> tuple[list, dict]:
        """Axes of the one variable whose name ends so, and the shapes of what each rank's file has of it."""
        [about] = [each for each in document["checkpoint"]["variables"] if each["name"].endswith(end)]
        return about["axes"], {rank: file[about["name"]] for rank, file in enumerate(files) if about["name"] in file}

    assert found("/head#0/kernel#0") == ([], {0: (16, 3)})
    for name in ("/down#0/kernel#0", "down_kernel_momentum", "down_kernel_velocity"):
        assert found(name) == ([None, "model"], {0: (32, 8), 1: (32, 8)})  # ranks 2 and 3 hold the same
    for name in ("/up#0/kernel#0", "up_kernel_momentum"):
        assert found(name) == (["batch", None], {0: (8, 32), 2: (8, 32)})
    assert found("/norm#0/moving_mean#0") == ([], {0: (32,), 2: (32,)})
    assert found("down_kernel_gradient_accumulator") == ([None, "model"], dict.fromkeys(range(4), (32, 8)))
    assert found("head_kernel_gradient_accumulator") == ([], {0: (16, 3), 2: (16, 3)})
    assert found("up_kernel_gradient_accumulator") == (["batch", None], {0: (8, 32), 2: (8, 32)})  # summed already


@pytest.mark.parametrize("mesh", [None, "1x2"])
def test_what_ranks_with_other_rows_have_becomes_one(mesh, written, ranks):
    """Sums of accumulated gradients, means of moving statistics."""
    folder, then = written("2x2", "other")
    whole = then[0]
    for result in run(ranks, tasks.load, mesh, path=str(folder), every_state=True):
        assert result["name"] == "CKP-1_4"
        assert all(np.array_equal(a, b) for a, b in zip(result["slots"], whole["slots"], strict=True))
        sums = [
            a if np.array_equal(a, b) else a + b for a, b in zip(*(then[r]["accumulated"] for r in (0, 2)), strict=True)
        ]
        assert relative_distance(result["accumulated"], sums) < 1e-7
        means = [(a + b) / 2 for a, b in zip(*(then[r]["statistics"] for r in (0, 2)), strict=True)]
        assert relative_distance(result["statistics"], means) < 1e-7


MESHES = [(1,), (3,), (1, 2), (2, 1), (2, 2), (4, 2), (2, 2, 2), (1, 2, 3)]


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_any_part_is_read_from_what_any_mesh_has_written(shape, tmp_path):
    """Whatever divides a variable, its parts are written once for each place of the data."""
    names = ("batch", "model", "more")[: len(shape)]
    grid = Grid(shape, names, tuple(range(math.prod(shape))), names[0])
    numbers = np.random.default_rng(len(shape))
    layouts = [[], *([*each] for each in itertools.permutations([*names, None, None], 2))]
    variables = [
        manifests.Variable(f"{how} {axes}", [24, 48], "float32", how, axes)
        for axes in layouts
        for how in ("same", "sum")
        if how == "same" or "batch" not in axes
    ]
    values = {each.name: numbers.normal(size=(grid.num_places, *each.shape)).astype("float32") for each in variables}
    files = []
    for rank in grid.ranks:
        own = [each for each in variables if grid.writes(each, rank)]
        place = {each.name: 0 if each.across_ranks == "same" else grid.place(rank) for each in own}
        arrays = {each.name: values[each.name][place[each.name]][grid.part(each, rank)] for each in own}
        (tmp_path / f"rank.{rank}").mkdir()
        path = f"rank.{rank}/CKP-1_1.safetensors"
        files.append(manifests.File(path, *write_arrays(tmp_path / path, arrays)))
    needed = sum(value.nbytes / (grid.num_places if name.startswith("same") else 1) for name, value in values.items())
    assert needed < sum(file.num_bytes for file in files) < 1.5 * needed
    reader = Reader(tmp_path, manifests.Manifest("CKP-1_1", 1, grid, 1, 0, None, 0, None, variables, {}, files))
    for each in variables:
        for place in range(1 if each.across_ranks == "same" else grid.num_places):
            rows, columns = (sorted(numbers.choice(size + 1, 2, replace=False).tolist()) for size in each.shape)
            for wanted in ((slice(*rows), slice(*columns)), (slice(0, 24), slice(0, 48))):
                found = reader.part_of(each, place, wanted, np.dtype("float32"))
                np.testing.assert_array_equal(found, values[each.name][place][wanted])
    reader.close()


@pytest.mark.long
def test_from_mesh_to_mesh_to_one_process(ranks, tmp_path, exactness):
    """Gradients are being accumulated at each stop, metrics of an epoch are half done."""
    [twin] = run(ranks, tasks.fit, None, folder=None)
    way = [
        ("data", (1, 3), "wide"),
        ("data zero 1", (2, 1), "wide"),
        ("data zero 3", (2, 2), "wide"),
        ("replicas", (2, 3), "wide"),
        ("1x2", (2, 4), "wide"),
        ("2x2", (3, 1), "other"),
        ("1x2", (3, 4), "wide"),
    ]
    for mesh, stop, layout in way:
        results = run(
            ranks, tasks.fit, mesh, folder=str(tmp_path), stop=stop, layout=layout, asynchronous=False, every=1
        )
        assert {result["from"] is None for result in results} == {mesh == "data"}
        if mesh == "2x2":
            shutil.copytree(tmp_path, tmp_path / "copy")
    ends = [(tmp_path, "2x1", "other"), (tmp_path / "copy", None, "wide"), (tmp_path / "copy", "data zero 2", "wide")]
    for path, mesh, layout in ends:
        folder = shutil.copytree(path, tmp_path.with_name(f"{tmp_path.name}-{path.name}-{mesh}"))
        for result in run(ranks, tasks.fit, mesh, folder=str(folder), layout=layout):
            exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
            exactness(relative_distance(result["slots"], twin["slots"]), 1e-6)
            assert log_distance(result["logs"], {key: values[2:] for key, values in twin["logs"].items()}) < 2e-5


@pytest.mark.parametrize(("mesh", "layout"), [("1x2", "other"), (None, "wide")])
def test_reading_takes_less_memory_than_a_whole_variable_besides_the_shards(mesh, layout, ranks, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "big"
    if not folder.exists():
        expected = run(ranks, tasks.write_big, "1x2", folder=str(folder))
        (folder / "sums").write_text(json.dumps(expected[0]))
    for result in run(ranks, tasks.read_big, mesh, folder=str(folder), layout=layout):
        assert result["sums"] == json.loads((folder / "sums").read_text())
        assert result["size"] == 2**24
        assert result["peak"] < 2**24


def only_rank_0_wrote(folder: Path, size: int) -> list[str]:
    for rank in range(1, size):
        assert list((folder / f"rank{rank}").iterdir()) == []
    return sorted(path.name for path in (folder / "rank0").iterdir())


@pytest.mark.long
def test_saving_writes_ordinary_files_on_rank_0(ranks, plain, tmp_path):
    results = run(ranks, tasks.save, "2x2", folder=str(tmp_path), layout="other")
    assert only_rank_0_wrote(tmp_path, len(results)) == ["direct.keras", "exported", "model.keras", "model.weights.h5"]
    for name in ("model.keras", "direct.keras"):
        [loaded] = plain.run(tasks.load_file, path=str(tmp_path / "rank0" / name))
        for result in results:
            for key in ("weights", "slots"):
                assert all(np.array_equal(a, b) for a, b in zip(loaded[key], result[key], strict=True))
            # The file has the gradients that all ranks had accumulated.
            assert relative_distance(loaded["after"], result["after"]) < 1e-6
    first, *others = results
    assert all(other["refused"] == first["refused"] for other in others)
    assert [first["asked"], *(other["asked"] for other in others)] == [2, 0, 0, 0]
    (_, nowhere), (kind, unknown) = first["refused"]
    assert "Model.save of model 'sequential' failed on rank 0, which acts for all: FileNotFoundError" in nowhere
    assert kind == "AgreedValueError" and "Invalid filepath extension" in unknown
    assert "rank 0 calls Model.save of a model with" in first["alone"] and "on every rank" in first["alone"]
    assert all("'call' is Model.save on rank 0 but fit on rank" in other["alone"] for other in others)


@pytest.mark.long
def test_an_ordinary_file_is_loaded_into_a_model_that_is_divided(ranks, plain, tmp_path, exactness):
    path = str(tmp_path / "model.keras")
    [twin] = plain.run(tasks.fit_and_save, path=path)
    for result in run(ranks, tasks.load_into, "2x2", path=path, layout="other"):
        for key in ("weights", "slots"):
            assert all(np.array_equal(a, b) for a, b in zip(result[key], twin[key], strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(result["loaded"], twin["weights"], strict=True))
        assert result["divided"] > 0
        exactness(relative_distance(result["after"], twin["after"]), 1e-6)
        exactness(relative_distance(result["after weights"], twin["after"]), 1e-6)


@pytest.mark.long
def test_keras_own_callbacks_save_and_restore(ranks, plain, tmp_path, exactness):
    [twin] = plain.run(tasks.fit_with_backup, folder=str(tmp_path / "plain"), mesh=None)
    run(ranks, tasks.fit_with_backup, "2x2", folder=str(tmp_path), layout="other", stop=(2, 2))
    results = run(ranks, tasks.fit_with_backup, "2x2", folder=str(tmp_path), layout="other")
    assert only_rank_0_wrote(tmp_path, len(results)) == twin["files"]
    for result in results:
        exactness(relative_distance(result["weights"], twin["weights"]), 1e-6)
        exactness(relative_distance(result["slots"], twin["slots"]), 1e-6)


def test_a_checkpoint_on_rank_0_only_is_refused(ranks, tmp_path):
    results = ranks(2).attempt(tasks.checkpoint_on_rank_0, mesh="1x2", folder=str(tmp_path))
    assert len(results) == 2 and all(isinstance(result, Failure) for result in results)
    assert all("ModelCheckpoint is not on all ranks, but model 'sequential' is divided" in r.message for r in results)
