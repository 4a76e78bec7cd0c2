"""What is replaced in Keras and TensorFlow can be taken out again, object by object."""

import json
import subprocess
import sys

from tests.patience import PATIENCE
from tests.ranks.pool import REPOSITORY, environment


def replaced(*arguments: str) -> dict[str, list[str]]:
    command = [sys.executable, "-m", "tests.programs.replacements", *arguments]
    result = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_plain_keras_is_back_after_uninstalling():
    names = replaced()
    assert len(names["first"]) > 250
    assert {"TensorFlowTrainer.fit", "keras.src.backend.tensorflow.numpy.add", "Tensor.__add__"} <= set(names["first"])
    assert "keras.src.distribution.distribution_lib.global_state" in names["first"]
    assert names["left"] == []
    assert names["again"] == names["first"]


def test_what_is_replaced_besides_the_table_is_found():
    assert any(name.endswith("Dense.call") for name in replaced("besides")["left"])


def test_draws_are_replaced_by_whatever_name_a_script_calls_them():
    program = (
        "import tensorflow as tf, tensorflow.compat.v2 as other\n"
        "from tensorflow.random import normal\n"
        "import keras_par as kp\n"
        "kp.init()\n"
        "names = [normal, other.random.normal, other.nn.dropout, tf.compat.v1.random_normal]\n"
        "names += [tf.random.Generator.uniform_full_int, tf.random.Generator.normal]\n"
        "print([hasattr(each, '_keras_par') for each in names], hasattr(tf.random.set_seed, '_keras_par'))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    assert result.stdout.splitlines()[-1] == f"{[True] * 6} False", result.stderr[-3000:]
