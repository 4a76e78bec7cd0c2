"""Whole jobs: examples under every launcher, a rank that fails, a Horovod that is missing or does not fit."""

import time

import pytest

from tests.jobs import start, write_script
from tests.ranks.pool import WITH_EXTRAS

NUMBER = r"(\d+\.\d+)"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder in which the first run of the example prepares its data set, and later ones find it."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.mark.long
@pytest.mark.parametrize(
    "launchers",
    [
        ("mpirun", "keras-par run"),
        pytest.param(("mpirun", "horovodrun", "horovodrun --gloo"), marks=pytest.mark.slow),
    ],
)
def test_every_launcher_gives_the_same_losses(launchers, data_dir):
    found = {}
    for launcher in launchers:
        job = start(launcher, 2, "examples/mnist.py", "--smoke", "--data-dir", data_dir, **WITH_EXTRAS)
        assert job.status == 0, job.output
        hashes = job.find(r"rank \d of 2: weights ([0-9a-f]{16})")
        assert len(hashes) == 2
        assert len(set(hashes)) == 1, job.output
        found[launcher] = losses(job)
    assert all(each == found["mpirun"] for each in found.values())
    alone = start(
        "python", 1, "examples/mnist.py", "--smoke", "--data-dir", data_dir, "--batch-size", "64", **WITH_EXTRAS
    )
    assert found["mpirun"] == pytest.approx(losses(alone), rel=1e-4)


@pytest.mark.long
def test_a_mesh_that_needs_groups_of_ranks_where_horovod_may_make_none_is_refused_on_every_rank(tmp_path):
    script = write_script(
        tmp_path,
        """
        import keras
        import keras_par as kp

        kp.init()
        mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], [f"cpu:{rank}" for rank in range(4)])
        layout_map = keras.distribution.LayoutMap(mesh)
        layout_map["sequential/dense/kernel"] = (None, "model")
        with kp.ModelParallel(layout_map=layout_map, batch_dim_name="batch").scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="dense")])
            model.compile(loss="mse")
            try:
                model.fit(keras.ops.ones((4, 4)), keras.ops.ones((4, 4)), verbose=0)
            except RuntimeError as error:
                print(f"rank {kp.rank()}: {error}")
        """,
    )
    job = start("mpirun", 4, script, HOROVOD_DYNAMIC_PROCESS_SETS="0")
    assert job.status == 0, job.output
    sentences = job.find(r"rank (\d): keras-par: the mesh needs a group of the ranks \[0, 2\], and Horovod makes none")
    assert sorted(sentences) == ["0", "1", "2", "3"], job.output
    assert len(job.find("and HOROVOD_DYNAMIC_PROCESS_SETS unset")) == 4


def losses(job) -> list[float]:
    """The losses of two epochs' last steps, and the test losses before and after."""
    steps = job.find(rf"loss is {NUMBER}")
    [(before, after)] = job.find(rf"test loss {NUMBER} -> {NUMBER}")
    assert len(steps) == 2, job.output
    return [float(value) for value in (*steps, before, after)]


def test_the_example_in_one_process_starts_neither_horovod_nor_mpi(data_dir, tmp_path):
    script = write_script(
        tmp_path,
        f"""
        import sys
        sys.path.insert(0, "examples")
        sys.argv = ["mnist.py", "--smoke", "--data-dir", {data_dir!r}]
        import mnist
        mnist.main()
        print("loaded:", [name for name in sys.modules if name.split(".")[0] in ("horovod", "mpi4py")])
        maps = open("/proc/self/maps").read()
        print("mapped:", "libmpi" in maps, "horovod" in maps)
        """,
    )
    job = start("python", 1, script, **WITH_EXTRAS)  # with which the example prepares its data
    assert job.status == 0, job.output
    assert "rank 0 of 1" in job.output
    assert "loaded: []" in job.output
    assert "mapped: False False" in job.output


@pytest.mark.long
def test_the_line_through_four_points_matches_its_oracle():
    """Row E4: w walks to [2, 3]; at step 50 the local losses are 2.5337e-4 and 4.1119e-3."""
    job = start("mpirun", 2, "examples/ddp_train.py")
    assert job.status == 0, job.output
    assert job.find(r"rank 0 step 50: loss (.{10})") == ["2.5337e-04"]
    assert job.find(r"rank 1 step 50: loss (.{10})") == ["4.1119e-03"]
    ends = job.find(r"w = \[([\d.]+), ([\d.]+)\]")
    assert len(ends) == 2
    for w in ends:
        assert [float(value) for value in w] == pytest.approx([2.0, 3.0], abs=1e-6)


@pytest.mark.long
def test_the_hand_written_loop_ends_where_fit_ends():
    job = start("mpirun", 2, "examples/gradient_tape.py", **WITH_EXTRAS)
    assert job.status == 0, job.output
    distances = job.find(r"rank \d of 2: relative distance between loop and fit (\d\.\d+e-\d+)")
    assert len(distances) == 2
    assert all(float(distance) < 1e-6 for distance in distances)


@pytest.mark.long
@pytest.mark.parametrize("example", ["ddp_train.py", pytest.param("gradient_tape.py", marks=pytest.mark.slow)])
def test_examples_have_a_smoke_run(example):
    job = start("mpirun", 2, f"examples/{example}", "--smoke", **WITH_EXTRAS)
    assert job.status == 0, job.output


FAILING = """
import keras, numpy as np, keras_par as kp
from keras import layers

kp.init()

class Fail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if kp.rank() == {rank} and batch == 3:
            raise OSError("the disk is full")

with kp.DataParallel().scope():
    model = keras.Sequential([layers.Input((4,)), layers.Dense(2)])
    model.compile("sgd", "mse")
x, y = np.zeros((4000, 4), "float32"), np.zeros((4000, 2), "float32")
print("ready", flush=True)
model.fit(x, y, batch_size=4, verbose=0, callbacks=[Fail()])
print("went on", flush=True)
"""


@pytest.mark.parametrize(
    ("launcher", "rank"),
    [
        ("mpirun", 0),
        pytest.param("mpirun", 1, marks=pytest.mark.slow),
        pytest.param("horovodrun --gloo", 0, marks=pytest.mark.long),
        pytest.param("horovodrun --gloo", 1, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_raises_in_fit_ends_all_and_is_named(rank, launcher, tmp_path):
    script = write_script(tmp_path, FAILING.format(rank=rank))
    begin = time.monotonic()
    job = start(launcher, 2, script)
    assert job.status != 0
    assert len(job.find("ready")) == 2
    assert "went on" not in job.output
    assert "\nOSError: the disk is full" in job.output
    told = f"RuntimeError: keras-par: rank {rank} failed first, so this rank stops: OSError: the disk is full"
    assert told in job.output
    assert time.monotonic() - begin < 60


@pytest.mark.long
def test_rank_0_alone_shows_a_progress_bar_and_a_rank_that_raises_between_calls_of_fit_is_named(tmp_path):
    script = write_script(
        tmp_path,
        """
        import keras, numpy as np, keras_par as kp
        with kp.DataParallel().scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse")
        model.fit(np.zeros((8, 4)), np.zeros((8, 2)), batch_size=4)
        if kp.rank() == 1:
            raise KeyError("no such file")
        model.fit(np.zeros((8, 4)), np.zeros((8, 2)), batch_size=4, verbose=0)
        """,
    )
    job = start("mpirun", 2, script)
    assert job.status != 0
    assert job.output.count("2/2") == 1, job.output
    assert "rank 1 failed first, so this rank stops: KeyError: 'no such file'" in job.output


MISSING = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "horovod":
            raise ModuleNotFoundError("No module named 'horovod'", name="horovod")
sys.meta_path.insert(0, Block())
"""
BROKEN = """
import sys, types
horovod = types.ModuleType("horovod")
tensorflow = types.ModuleType("horovod.tensorflow")
def missing(name):
    raise ImportError("mpi_lib.so: undefined symbol: _ZN10tensorflow8OpKernel")
tensorflow.__getattr__ = missing
sys.modules["horovod"], sys.modules["horovod.tensorflow"] = horovod, tensorflow
"""
UNFIT = {
    "missing": (MISSING, "Horovod is not installed", "run 'keras-par install-horovod'"),
    "broken": (BROKEN, "does not load with TensorFlow", "run 'keras-par install-horovod --rebuild'"),
    "old keras": (
        "import keras\nkeras.__version__ = '3.5.0'\n",
        "Keras 3.5.0 is installed, but keras-par supports Keras >= 3.14",
        "pip install",
    ),
}


@pytest.mark.parametrize(
    "name", ["missing", *(pytest.param(name, marks=pytest.mark.slow) for name in ("broken", "old keras"))]
)
def test_what_does_not_fit_is_said_on_every_rank(name, tmp_path):
    text, said, advice = UNFIT[name]
    engine = "'mpi'" if name == "missing" else None  # by itself TensorFlow would connect the ranks
    tried = f"import time\ntry:\n    import keras_par as kp\n    kp.init({engine})\nfinally:\n    time.sleep(1)"
    job = start("mpirun", 2, write_script(tmp_path, f"{text}{tried}"))
    assert job.status != 0
    sentences = job.find("RuntimeError: keras-par: .*")
    assert len(sentences) == 2, job.output
    assert all(said in sentence and advice in sentence for sentence in sentences)


def test_an_engine_that_the_launch_does_not_offer_is_refused(tmp_path):
    script = write_script(tmp_path, "import keras_par as kp\nkp.init(engine='mpi')")
    job = start("python", 1, script)
    assert "init(engine='mpi') does not fit this launch, which is solo with 1 rank(s)" in job.output
