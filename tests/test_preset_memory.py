"""A language model that no rank can hold is read from KerasHub's and Hugging Face's files, each rank its shards."""

import numpy as np
import pytest

from tests import worlds
from tests.control_group import memory_limit
from tests.launcher import Job, program
from tests.programs import load_preset

SHARE = 0.85  # of the whole model's bytes that a rank may take to load it; two ranks hold a half each


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the models, and for each kind of file the large one's bytes and what one process predicts by it."""
    folder, found = tmp_path_factory.mktemp("models"), {}
    for what in ("preset", "file", "safetensors"):
        for name, sizes in (("small", (16, 1)), ("large", (1024, 8))):
            model = load_preset.model(*sizes, what)
            load_preset.write(folder, what, name, model)
        found[what] = model.count_params() * 4, model.predict(load_preset.TOKENS, verbose=0)
    return folder, found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__")  # of TensorFlow, which NumPy asks
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("copies", "preset"),
        ("zero", "preset"),
        ("layouts", "file"),
        ("zero", "safetensors"),
        ("layouts", "safetensors"),
    ],
)
def test_no_rank_need_hold_the_whole(how, what, written, tmp_path):
    folder, found = written
    num_bytes, expected = found[what]
    (tmp_path / what).symlink_to(folder / what)
    job = Job("-np", 2, program("load_preset"), tmp_path, how, what)
    with memory_limit(int(2 * SHARE * num_bytes)) as group:
        for rank in range(2):
            job.wait_for(tmp_path / f"ready.{rank}")
        for process in worlds.ranks(job):
            (group / "cgroup.procs").write_text(str(process.pid))
        (tmp_path / "limited").touch()
        if how == "copies":
            ended = job.wait()
            assert ended.status == 137 and "because memory ran out" in ended.last_panel
            return
        for rank in range(2):
            job.wait_for(tmp_path / f"loaded.{rank}")
        for process in worlds.ranks(job):
            (group.parent / "cgroup.procs").write_text(str(process.pid))
        (tmp_path / "free").touch()
        assert job.wait().status == 0
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), expected, rtol=1e-4, atol=1e-5)
