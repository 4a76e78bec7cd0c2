"""The wheel that `make wheel` makes has all that the package needs, and trains where there is nothing else of it."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import Ended
from tests.launcher import program
from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment
from tests.test_doctor import make_environment

WHERE = "import keras_par, keras_par.launch.engines as engines; print(keras_par.__file__, engines.horovod_library())"


def run(folder: Path, *command: str, **variables: str) -> str:
    """What a command prints that ends well, with nothing of this repository on Python's path."""
    ended = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment(PYTHONPATH="", **variables),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.long
def test_ranks_train_from_the_wheel_alone(tmp_path):
    run(REPOSITORY, "make", "wheel", f"DIST={tmp_path}")
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    tracked = run(REPOSITORY, "git", "ls-files", "keras_par", "strategies").splitlines()
    assert len([path for path in tracked if not path.endswith(".py")]) > 50
    wanted = {re.sub("^strategies/", "keras_par/strategies/", path) for path in tracked}
    assert wanted - set(zipfile.ZipFile(wheel).namelist()) == set()

    python = make_environment(tmp_path / "env", ".*keras_par.*", "horovod", "mpirun")
    run(tmp_path, sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", str(wheel))
    file, horovod = run(tmp_path, str(python), "-c", WHERE).split()
    assert Path(file).is_relative_to(tmp_path / "env") and horovod == "None"
    variables = {"CXX": "/not/there", "KERAS_PAR_CACHE": str(tmp_path / "cache")}
    command = str(python.with_name("keras-par")), "run", "-np", "2"
    of_ranks = Ended(0, run(tmp_path, *command, program("fit_losses"), **variables)).values("losses: ")
    [alone] = Ended(0, run(tmp_path, str(python), program("fit_losses"))).values("losses: ")
    assert sorted(each[:2] for each in of_ranks) == [[0, 2], [1, 2]] and alone[:2] == [0, 1]
    for _, _, *losses in of_ranks:
        np.testing.assert_allclose(losses, alone[2:], rtol=1e-6)
