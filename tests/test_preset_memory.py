"""A language model that no rank can hold is read from a preset and from a .keras file, each rank its shards."""

import numpy as np
import pytest

from tests import worlds
from tests.control_group import memory_limit
from tests.launcher import Job, program
from tests.programs import load_preset

SHARE = 0.85  # of the whole model's bytes that a rank may take to load it; two ranks hold a half each


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the models, the bytes of the large one's weights, and what one process predicts by it."""
    folder = tmp_path_factory.mktemp("models")
    for name, sizes in (("small", (16, 1)), ("large", (1024, 8))):
        model = load_preset.model(*sizes)
        model.save_to_preset(str(folder / name))
        model.save(folder / name / "whole.keras")
    return folder, model.count_params() * 4, model.predict(load_preset.TOKENS, verbose=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:__array__")  # of TensorFlow, which NumPy asks
@pytest.mark.parametrize("what", ["preset", "file"])
@pytest.mark.parametrize("how", ["copies", "zero", "layouts"])
def test_no_rank_need_hold_the_whole(how, what, written, tmp_path):
    folder, num_bytes, expected = written
    for name in ("small", "large"):
        (tmp_path / name).symlink_to(folder / name)
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
