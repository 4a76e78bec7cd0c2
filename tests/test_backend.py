"""Another backend of Keras's is one sentence, also where that backend is not installed."""

import subprocess
import sys

import pytest

from keras_par.base import backend
from tests.patience import PATIENCE
from tests.ranks.pool import environment

SENTENCE = "keras-par: Keras runs on the jax backend, but keras-par needs TensorFlow: set KERAS_BACKEND=tensorflow"


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import keras_par as kp; kp.init()"],
        ["-m", "keras_par.launch.cli", "plan", "data-parallel", "model.py:build", "--ranks", "2"],
    ],
)
def test_jax_gets_the_sentence_that_torch_gets(command):
    done = subprocess.run(
        [sys.executable, *command],
        env=environment(KERAS_BACKEND="jax"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode != 0
    assert SENTENCE in done.stderr.splitlines()[-1]
    assert "No module named" not in done.stderr


def test_a_backend_that_keras_json_names_is_found(tmp_path, monkeypatch):
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert backend.keras_backend() == ("torch", str(tmp_path / "keras.json"))
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    with pytest.raises(RuntimeError, match="Keras runs on the torch backend"):
        backend.require_tensorflow()
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    backend.require_tensorflow()
