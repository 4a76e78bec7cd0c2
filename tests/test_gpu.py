"""What one GPU can show: the same training as plain Keras's there, by one rank and by several that share it.

Each test prints a figure. Without a GPU they fail. Numbers of float64 show what is exact; the tolerances of others
leave room for kernels that add up in no order, by which plain Keras differs from itself.
"""

import os
import statistics
from itertools import product

import pytest
import tensorflow as tf

from tests import gpu_tasks as tasks
from tests.communicator_tasks import look
from tests.compare import relative_distance
from tests.launcher import program, run
from tests.ranks.pool import RankPool

pytestmark = pytest.mark.gpu

GPU = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]}
GROWTH = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # one process takes all of a GPU's memory, under keras-par, too
SECONDS = 300  # of a task, as a kernel is made for the GPU when it is first used
MODELS = ("mlp", "cnn", "transformer")
PRECISIONS = {
    "float64": ({"policy": "float64"}, 1e-12),
    "float32": ({"policy": "float32"}, 1e-5),
    "TF32": ({"policy": "float32", "tf32": True}, 2e-3),
    "float16": ({"policy": "mixed_float16"}, 2e-2),
    "bfloat16": ({"policy": "mixed_bfloat16"}, 5e-2),
}
COST = 1.02  # of a step of one rank beside plain Keras's

_pools: dict[tuple[str, int], RankPool] = {}
_plain: dict[str, dict] = {}


@pytest.fixture(scope="module")
def pools():
    """A function that returns a pool of so many ranks, or of plain Keras, whose processes see the GPU."""
    assert tf.config.list_physical_devices("GPU"), "TensorFlow sees no GPU here, without which these tests show nothing"

    def pool(size: int, kind: str = "ranks") -> RankPool:
        if (kind, size) not in _pools:
            _pools[kind, size] = RankPool(size, kind, variables=GPU if size > 1 else GPU | GROWTH)
        return _pools[kind, size]

    yield pool
    for each in _pools.values():
        each.close()


@pytest.fixture
def figure(request, capsys):
    """Prints a figure below the test's name."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {request.node.name}: {text}")

    return show


def plain(pools, name: str, **how) -> dict:
    """What plain Keras makes of a training, found once."""
    key = f"{name} {sorted(how.items())}"
    if key not in _plain:
        [_plain[key]] = pools(1, "plain").run(tasks.train, SECONDS, name=name, distributed=False, **how)
    return _plain[key]


def compare(pools, figure, size: int, name: str, tolerance: float, how: dict, options: dict | None = None) -> None:
    """Trains by plain Keras and by ranks, whose weights must be as near as the tolerance."""
    theirs = plain(pools, name, **how)
    ours = pools(size).run(tasks.train, SECONDS, name=name, distributed=True, **how, **(options or {}))
    assert len(ours) == size
    distances = [relative_distance(each["weights"], theirs["weights"]) for each in ours]
    memory = max(each["peak"] for each in ours) / theirs["peak"]
    figure(f"distance {max(distances):.1e}, tolerance {tolerance:.0e}; memory of a rank {memory:.2f} x plain's")
    assert all(each["devices"] == {"device:GPU:0"} for each in [theirs, *ours])
    assert theirs["loss"][-1] > 0 and max(distances) <= tolerance


def test_ranks_see_the_gpu_and_sum_over_the_host(pools, figure):
    for size in (2, 4):
        seen = pools(size).run(tasks.sees)
        assert [each["size"] for each in seen] == [size] * size
        figure(f"{size} ranks on {seen[0]['gpu']}; sums by {seen[0]['reduces_by']} ({seen[0]['why']})")
        assert seen[0]["reduces_by"] == ("engine" if seen[0]["why"] else "shared_memory")


@pytest.mark.parametrize(
    ("name", "precision"),
    [*(("transformer", precision) for precision in PRECISIONS), *product(("mlp", "cnn"), ("float64", "float16"))],
)
def test_one_rank_trains_as_plain_keras(name, precision, pools, figure):
    how, tolerance = PRECISIONS[precision]
    compare(pools, figure, 1, name, tolerance, how)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_one_rank_and_xla_train_as_plain_keras_with_xla(precision, pools, figure):
    how, tolerance = PRECISIONS[precision]
    compare(pools, figure, 1, "mlp", tolerance, how | {"jit": True})


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_that_share_a_gpu_train_as_one_process(name, size, pools, figure):
    compare(pools, figure, size, name, 1e-12, {"policy": "float64"})


@pytest.mark.parametrize("precision", ["float32", "TF32", "float16", "bfloat16"])
def test_two_ranks_train_as_one_process_in_each_precision(precision, pools, figure):
    how, tolerance = PRECISIONS[precision]
    compare(pools, figure, 2, "transformer", tolerance, how)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_dropout_is_one_processs_bit_by_bit(size, pools, figure):
    compare(pools, figure, size, "transformer", 1e-12, {"policy": "float64", "dropout": 0.3})


def test_a_clipped_table_trains_as_one_process(pools, figure):
    compare(pools, figure, 2, "transformer", 1e-12, {"policy": "float64", "clip": 0.5})


def test_two_ranks_and_xla_train_as_one_process(pools, figure):
    compare(pools, figure, 2, "mlp", 1e-12, {"policy": "float64", "jit": True})


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_trains_as_one_process(zero, pools, figure):
    compare(pools, figure, 2, "mlp", 1e-12, {"policy": "float64"}, {"zero": zero, "zero_min_kb": 0})


@pytest.mark.parametrize("mesh", [(1, 2), (2, 2)])
def test_a_mesh_trains_as_one_process(mesh, pools, figure):
    compare(pools, figure, mesh[0] * mesh[1], "transformer", 1e-12, {"policy": "float64"}, {"mesh": mesh})


@pytest.mark.parametrize("kind", ["active", "horovod"])
def test_the_contract_of_collectives_is_kept(kind, pools, figure):
    results = pools(2).run(look, SECONDS, kind=kind)
    figure(f"eagerly and in a graph by {results[0]['routes']}")
    assert [result["breaches"] for result in results] == [[]] * 2


@pytest.mark.parametrize(
    ("name", "size"),
    [("mlp", {"width": 4096}), ("transformer", {"width": 512, "blocks": 4, "length": 128})],
    ids=["mlp", "transformer"],
)
@pytest.mark.parametrize("jit", [False, True], ids=["", "xla"])
def test_a_step_costs_what_plain_keras_takes(name, size, jit, pools, figure):
    """Epochs of both alternate; the goal is told beside, and the assertion leaves room for a busy machine."""
    how = {"name": name, "steps": 60, "jit": jit, **size}
    ratios, ours = [], 0.0
    for number in range(5):
        [theirs] = pools(1, "plain").run(tasks.seconds, SECONDS, distributed=False, **how)
        [ours] = pools(1).run(tasks.seconds, SECONDS, distributed=True, **how)
        ratios += [ours / theirs] * (number > 0)
    ratio = statistics.median(ratios)
    figure(f"{ratio:.3f} x plain Keras's {ours / ratio * 1e3:.2f} ms (goal {COST})")
    assert ratio < 1.25


def test_a_rank_out_of_the_gpus_memory_is_named(pools, figure):
    ended = run("-np", 2, program("gpu_memory"), **GPU)
    assert ended.status != 0 and "Rank 1" in ended.stderr, ended.stderr
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("Error: ")]
    figure(line)
    assert "GPU" in line
