"""The pages for users of other systems: both halves of a pair are run and compared, where the other one is installed.

JAX, MindSpore and OneFlow are not: of their pairs our half is run, and compared with one process.
"""

import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import keras_par
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment, mpirun, scripts
from tests.test_docs import names_of

FOLDER = REPOSITORY / "docs" / "elsewhere"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
SLOW = pytest.mark.slow

GROUP = re.compile(r'^=== "(?P<label>[^"]+)"\n\n(?P<body>(?:(?:    [^\n]*)?\n)+)', re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")

MPIRUN = [*mpirun(2), sys.executable]
RUN = [str(scripts() / "keras-par"), "run", "-np", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DDP = "model = DistributedDataParallel(model)\n"
SAVE = "import os\nnp.savez(f'weights.{os.getpid()}.npz', *WEIGHTS)\n"
OF_KERAS = SAVE.replace("WEIGHTS", "model.get_weights()")
OF_DIVIDED = "assert any(row.local_shape != row.shape for row in kp.describe(model).variables)\n" + OF_KERAS
OF_TORCH = "whole = [each.full_tensor() if hasattr(each, 'full_tensor') else each for each in model.parameters()]\n"
OF_TORCH += SAVE.replace("WEIGHTS", "[each.detach().numpy().T for each in whole]")
# The threads of a group may abort a process that ends as Python does, also behind this call (pytorch#190489).
OF_TORCH += "dist.barrier()\ndist.destroy_process_group()\nos._exit(0)\n"


def tabs(name: str) -> dict[str, list[str]]:
    """The code of a page's tabs, by label, in order."""
    found: dict[str, list[str]] = {}
    for group in GROUP.finditer((FOLDER / name).read_text()):
        [code] = re.findall(r"```python\n(.*?)```", textwrap.dedent(group["body"]), re.DOTALL)
        found.setdefault(group["label"], []).append(code)
    return found


def run(command: list[str], code: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """Runs a script in a folder of its own."""
    folder.mkdir()
    (folder / "train.py").write_text(code)
    return subprocess.run(
        [*command, "train.py"],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
    )


def trained(command: list[str], code: str, folder: Path, save: str = OF_KERAS) -> list[np.ndarray]:
    """All weights that a script ends with, as one vector for each process."""
    ended = run(command, code + save, folder)
    assert ended.returncode == 0, ended.stdout
    return [
        np.concatenate([weights[name].ravel() for name in weights])
        for weights in map(np.load, sorted(folder.glob("weights.*.npz")))
    ]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def require_equal(ours: list[np.ndarray], theirs: list[np.ndarray], exactness, num_ranks: int = 2) -> None:
    """Fails unless all processes of both have the same weights."""
    assert len(ours) == num_ranks
    for each in [*ours, *theirs[1:]]:
        exactness(distance(each, theirs[0]), 1e-5)


@pytest.fixture
def both(tmp_path, exactness):
    """A function that runs two scripts and compares the weights that they end with."""

    def compare(ours: str, theirs: str, command: list[str], save: str = OF_KERAS, our_save: str = OF_KERAS) -> None:
        found = trained(RUN, ours, tmp_path / "ours", our_save)
        require_equal(found, trained(command, theirs, tmp_path / "theirs", save), exactness)

    return compare


def in_place_of(code: str, old: str, new: str) -> str:
    assert code.count(old) == 1
    return code.replace(old, new)


def ended_at(code: str, word: str) -> str:
    """The lines before the first that begins with a word."""
    return code[: code.index(f"\n{word}") + 1]


def torch_loop(code: str) -> str:
    """A script without its last line, after which there is no group that could gather weights."""
    return in_place_of(code, "dist.destroy_process_group()\n", "")


@pytest.mark.long
def test_ddp_of_pytorch(both):
    page = tabs("pytorch.md")
    both(page["keras-par"][0], torch_loop(page["DDP"][0]), TORCHRUN, OF_TORCH)


@SLOW
def test_ours_under_torchrun(tmp_path, exactness):
    ours = tabs("pytorch.md")["keras-par"][0]
    theirs = trained([sys.executable], ours.replace("kp.size()", "2"), tmp_path / "alone")
    require_equal(trained(TORCHRUN, ours, tmp_path / "ours"), theirs, exactness)


@SLOW
def test_fsdp_of_pytorch(both):
    page = tabs("pytorch.md")
    ours = in_place_of(page["keras-par"][0], "strategy = kp.DataParallel()\n", page["keras-par, zero=3"][0])
    both(ours, in_place_of(torch_loop(page["DDP"][0]), DDP, page["FSDP2"][0]), TORCHRUN, OF_TORCH, OF_DIVIDED)


@SLOW
def test_tensor_parallel_of_pytorch(both):
    page = tabs("pytorch.md")
    ours = in_place_of(page["keras-par"][0], "strategy = kp.DataParallel()\n", page["keras-par, LayoutMap"][0])
    theirs = in_place_of(torch_loop(page["DDP"][0]), DDP, page["tensor parallel"][0])
    theirs = in_place_of(theirs, "DistributedSampler(data, ", "DistributedSampler(data, num_replicas=1, rank=0, ")
    both(ours, in_place_of(theirs, "batch_size=16", "batch_size=32"), TORCHRUN, OF_TORCH, OF_DIVIDED)


@SLOW
def test_mirrored_strategy(both):
    page = tabs("tf-distribute.md")
    both(page["keras-par"][0], page["tf.distribute"][0], [sys.executable])


@SLOW
def test_rows_of_a_last_batch_count_alike_here_only(tmp_path, exactness):
    """249 rows end in a batch of 25, of which one replica has 13."""
    page = tabs("tf-distribute.md")
    ours, theirs = (
        in_place_of(page[label][0], "(256, width)", "(249, width)") for label in ("keras-par", "tf.distribute")
    )
    alone = trained([sys.executable], ours, tmp_path / "alone")
    require_equal(trained(RUN, ours, tmp_path / "ours"), alone, exactness)
    [mirrored] = trained([sys.executable], theirs, tmp_path / "theirs")
    assert distance(mirrored, alone[0]) > 1e-4


@SLOW
def test_multi_worker_mirrored_strategy_does_not_fit(tmp_path):
    """What the page says about it."""
    code = ended_at(tabs("tf-distribute.md")["tf.distribute"][0], "[processor]")
    rest = tabs("tf-distribute.md")["tf.distribute"][0].partition("strategy = tf.distribute.MirroredStrategy")[2]
    code += f"strategy = tf.distribute.MultiWorkerMirroredStrategy()\n{rest.partition(chr(10))[2]}"
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        addresses = [f'"127.0.0.1:{each.getsockname()[1]}"' for each in (one, other)]
    (tmp_path / "train.py").write_text(code)
    cluster = f'"cluster": {{"worker": [{", ".join(addresses)}]}}'
    workers = [
        subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env=environment(TF_CONFIG=f'{{{cluster}, "task": {{"type": "worker", "index": {index}}}}}'),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for worker in workers:
            output = worker.communicate(timeout=PATIENCE)[0]
            assert worker.returncode == 1, output
            assert "ValueError: Attempt to convert a value (PerReplica:{" in output
    finally:
        for worker in workers:
            worker.kill()


@SLOW
def test_horovods_layer_reduces_nothing_on_keras_3(tmp_path):
    """Ranks that begin with equal weights have other ones after `fit`, without any error."""
    theirs = ended_at(in_place_of(tabs("horovod.md")["horovod"][0], ", callbacks=callbacks", ""), "if hvd.rank")
    one, other = trained(MPIRUN, theirs, tmp_path / "theirs")
    assert distance(one, other) > 1e-3


@SLOW
@pytest.mark.parametrize("without, error", [("", "AttributeError"), (", callbacks=callbacks", "TypeError: 'list'")])
def test_the_rest_of_horovods_layer_raises_on_keras_3(without, error, tmp_path):
    """Its callbacks do, and without them saving does."""
    ended = run(MPIRUN, tabs("horovod.md")["horovod"][0].replace(without, ""), tmp_path / "theirs")
    assert ended.returncode != 0
    assert error in ended.stdout


@SLOW
def test_fit_in_place_of_horovods_layer(tmp_path, exactness):
    """Our half under both launchers ends as one process does with the batch of two ranks."""
    ours = tabs("horovod.md")["keras-par"][0]
    alone = ours.replace("kp.size()", "2").replace("kp.schedules.scaled(0.05)", "0.1")
    theirs = trained([sys.executable], alone, tmp_path / "alone")
    require_equal(trained(RUN, ours, tmp_path / "ours"), theirs, exactness)
    horovodrun = [str(scripts() / "horovodrun"), "-np", "2", sys.executable]
    require_equal(trained(horovodrun, ours, tmp_path / "horovodrun"), theirs, exactness)


@SLOW
def test_a_loop_of_horovods(both):
    page = tabs("horovod.md")
    theirs = ended_at(page["horovod"][0], "model.compile") + page["horovod"][1]
    ours = ended_at(page["keras-par"][0], "rate") + page["keras-par"][1]
    both(ours, theirs, MPIRUN)


OBJECTS = """
import horovod.tensorflow as hvd

import keras_par as kp

kp.init()
ranks = hvd.allgather_object({"rank": kp.rank()})
assert [each["rank"] for each in ranks] == list(range(kp.size())), ranks
"""


@SLOW
def test_horovods_own_collectives_work_beside(tmp_path):
    """And its timeline is written."""
    ended = run(RUN, OBJECTS, tmp_path / "ours", HOROVOD_TIMELINE=str(tmp_path / "timeline.json"))
    assert ended.returncode == 0, ended.stdout
    assert "ALLGATHER" in (tmp_path / "timeline.json").read_text()


@SLOW
def test_layouts_of_keras_on_jax(both):
    """Their half is run on TensorFlow, in one process, where it divides nothing."""
    page = tabs("keras-distribution.md")
    both(page["keras-par"][0], page["Keras on JAX"][0], [sys.executable], our_save=OF_DIVIDED)


@SLOW
@pytest.mark.parametrize("name", ["mindspore.md", "oneflow.md"])
def test_our_half_of_data_parallel(name, both):
    ours = tabs(name)["keras-par"][0]
    both(ours, ours, [sys.executable])


@SLOW
def test_our_half_of_shard(tmp_path, exactness):
    ours = tabs("mindspore.md")["keras-par"][1]
    alone = re.sub(r"^(mesh|layout_map|keras\.distribution|print).*\n", "", ours, flags=re.MULTILINE)
    theirs = trained([sys.executable], alone, tmp_path / "alone")
    shown = ours.replace("print(kp.describe(model))", "print(*kp.describe(model).variables[:2], flush=True)")
    eight = [*RUN[:-1], "8", "--log-dir", "log"]
    require_equal(trained(eight, shown, tmp_path / "ours"), theirs, exactness, num_ranks=8)
    log = (tmp_path / "ours" / "log" / "rank.0" / "stdout").read_text()
    assert "first/kernel', shape=(32, 16), axes=('model', None)" in log
    assert "local_shape=(8, 16)" in log


@SLOW
def test_our_half_of_global_tensors(tmp_path, exactness):
    ours = tabs("oneflow.md")["keras-par"][1]
    save = SAVE.replace("WEIGHTS", "[model.predict(x, verbose=0)]")
    rng = np.random.default_rng(1)
    x, up, down = (rng.normal(size=shape).astype("float32") for shape in ((4, 8), (8, 16), (16, 2)))
    expected = (np.maximum(x @ up, 0) @ down).ravel()
    require_equal(trained(RUN, ours, tmp_path / "ours", save), [expected], exactness)


@pytest.mark.parametrize("name", PAGES)
def test_our_names_are_there(name):
    for first, second in re.findall(r"\bkp\.(\w+)(?:\.(\w+))?", (FOLDER / name).read_text()):
        assert first in keras_par.__all__, first
        if second and first in ("callbacks", "data", "ops", "schedules"):
            assert second in names_of(first), f"{first}.{second}"


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_sections(name):
    for target, section in LINK.findall((FOLDER / name).read_text()):
        page = (FOLDER / target).resolve() if target else FOLDER / name
        assert page.exists(), f"{name} links to {target}"
        assert not section or section in sections(page), f"{name} links to {target}#{section}"


def sections(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in headings}


def test_every_page_has_pairs_and_names():
    assert len(PAGES) == 6
    for name in PAGES:
        text = (FOLDER / name).read_text()
        assert "keras-par" in tabs(name)
        assert all(f"\n## {title}\n" in text for title in ("Names", "Differences that bite"))
