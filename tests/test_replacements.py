"""What is replaced in Keras and TensorFlow can be taken out again, object by object."""

import json
import subprocess
import sys

from tests.ranks.pool import REPOSITORY, environment


def test_plain_keras_is_back_after_uninstalling():
    command = [sys.executable, "-m", "tests.programs.replacements"]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-3000:]
    names = json.loads(result.stdout.splitlines()[-1])
    assert len(names["first"]) > 400
    assert {"TensorFlowTrainer.fit", "keras.src.backend.tensorflow.numpy.add", "Tensor.__add__"} <= set(names["first"])
    assert "keras.src.distribution.distribution_lib.global_state" in names["first"]
    assert names["left"] == []
    assert names["again"] == names["first"]
