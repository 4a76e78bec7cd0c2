"""Processes that a rank's multiprocessing starts are no ranks, also where they import the rank's script."""

import os
import subprocess
import sys

import pytest

from tests.patience import PATIENCE
from tests.ranks.pool import environment

SCRIPT = """
import multiprocessing
import keras_par as kp

kp.init()
print("this is rank", kp.rank(), flush=True)
worker = multiprocessing.get_context("spawn").Process(target=print, name="loader")
worker.start()
worker.join()
print("the worker ended with status", worker.exitcode)
"""


@pytest.mark.long
def test_a_worker_that_imports_a_script_without_a_guard_is_refused(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    variables = environment(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1")
    done = subprocess.run(
        [sys.executable, str(script)], env=variables, cwd=os.getcwd(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.splitlines() == ["this is rank 0", "the worker ended with status 1"], done.stderr
    assert "RuntimeError: keras-par: kp.init() was called in the worker 'loader'" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr
