"""The examples of model parallelism end where they end in one process, and show what each rank holds and sends."""

import pytest

from tests.jobs import start
from tests.ranks.pool import WITH_EXTRAS

NUMBER = r"(\d+\.\d+)"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """The example on 8 ranks, and its folder."""
    folder = tmp_path_factory.mktemp("quickstart")
    job = start("mpirun", 8, "examples/quickstart.py", "--folder", str(folder))
    assert job.status == 0, job.output
    return job, folder


@pytest.mark.slow
def test_the_quickstart_loses_what_one_process_loses(quickstart):
    """Rows A7 and K1: equal losses on all ranks, as LossMonitor prints them."""
    job, _ = quickstart
    alone = start("python", 1, "examples/quickstart.py", "--alone")
    losses = job.find(rf"rank \d of 8: last loss {NUMBER}")
    [expected] = alone.find(rf"rank 0 of 1: last loss {NUMBER}")
    assert len(losses) == 8
    assert len(set(losses)) == 1
    assert float(losses[0]) == pytest.approx(float(expected), rel=1e-6)
    told, theirs = (each.find(rf"epoch: (\d) step: (\d), loss is {NUMBER}") for each in (job, alone))
    assert [line[:2] for line in told] == [(str(epoch), step) for epoch in range(1, 6) for step in "24"]
    assert [float(line[2]) for line in told] == pytest.approx([float(line[2]) for line in theirs], rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("rank", range(8))
def test_the_quickstart_divides_as_it_says(quickstart, rank):
    """Rows A5, A6, K2 to K5: local x (8, 8), local w (8, 16), sums in groups of four, a folder for each rank."""
    folder = quickstart[1] / f"rank.{rank}"
    lines = [line.split() for line in (folder / "plan.txt").read_text().splitlines()]
    text = {line[0]: " ".join(line) for line in reversed(lines) if line}
    assert text["first/kernel"] == "first/kernel (32, 16) (model, -) (8, 16) 512"
    assert text["inputs"].startswith("inputs Identity (16, 32) (batch, model) (8, 8)")
    assert text["relu"].startswith("relu ReLU (16, 16) (batch, model) (8, 4)")
    group = "(0, 1, 2, 3)" if rank < 4 else "(4, 5, 6, 7)"
    sums = [" ".join(line) for line in lines if line[:1] == ["all_reduce"]]
    assert sum(line.startswith(f"all_reduce shared memory {group} (8, 16) 512") for line in sums) == 2
    assert sum(f"({rank % 4}, {rank % 4 + 4})" in line for line in sums) == 1  # the gradients
    assert all(".py:" in line for line in sums)
    names = {path.name for path in folder.iterdir()}
    assert {f"CKP-{epoch}_4.safetensors" for epoch in range(1, 6)} <= names


@pytest.mark.slow
def test_a_small_gpt_on_two_by_two():
    job = start("mpirun", 4, "examples/gpt.py", "--smoke")
    alone = start("python", 1, "examples/gpt.py", "--smoke", "--alone")
    assert job.status == alone.status == 0, job.output
    losses = job.find(rf"rank \d of 4: last loss {NUMBER}")
    [expected] = alone.find(rf"last loss {NUMBER}")
    assert len(losses) == 4
    assert [float(loss) for loss in losses] == pytest.approx([float(expected)] * 4, rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("transformer", "convnet"))]
)
def test_scripts_written_for_jax(name):
    job = start("mpirun", 2, f"examples/layout_map_{name}.py", "--smoke", **WITH_EXTRAS)
    alone = start("python", 1, f"examples/layout_map_{name}.py", "--smoke", **WITH_EXTRAS)
    assert job.status == alone.status == 0, job.output
    pattern = rf"last loss {NUMBER}.*?norm of weights {NUMBER}"
    [expected], found = alone.find(pattern), job.find(pattern)
    assert len(found) == 2
    for loss, norm in found:
        assert float(loss) == pytest.approx(float(expected[0]), rel=1e-4)
        assert float(norm) == pytest.approx(float(expected[1]), rel=1e-5)
